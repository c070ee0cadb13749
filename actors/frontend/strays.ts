/**
 * A worker that goes on with what nobody waits for any more: the order to give it up was refused by a full disk, or lost with the broker's
 * memory. Its tokens show it, and it is told again, by a frame, which needs no store.
 */
import { address } from '../../transport/index.js';
import type { FrontendCtx, FrontendState } from './state.js';

/** What was under way when it ended arrives within this, and needs no answer. */
const againMs = 1_000;
/** Beyond it all is forgotten, and told once more. */
const kept = 10_000;

export function dismiss(state: FrontendState, worker: string, num: number, attempt: number, ctx: FrontendCtx): void {
  const component = state.workers.get(worker);
  if (component === undefined) return;
  const key = `${worker}/${num}/${attempt}`;
  const seenAt = state.strays.get(key);
  const now = ctx.now();
  if (seenAt !== undefined && now - seenAt < againMs) return;
  if (state.strays.size >= kept) state.strays.clear();
  state.strays.set(key, now);
  if (seenAt === undefined) return;
  const body = { reply: { gateway: state.config.gateway, num } };
  ctx.frame(address(component, worker, 'worker'), 'Ended', body, { req: '', attempt, budgetMs: againMs });
}
