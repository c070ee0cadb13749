/** What a client may have missed is asked for again, from whoever has it. */
import type { Address } from '../../transport/index.js';
import { decodeAddress, prefillAddress, replyOf } from './dispatch.js';
import { prefillOf, type Request } from './request.js';
import { clock, type FrontendCtx, type FrontendState } from './state.js';

const resyncMs = 1_000;

/** Asks whoever decodes (or still prefills) to repeat from what the client has. */
export function resync(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  if (r.resyncing || !r.placement || r.phase === 'queued') return;
  const { decode } = r.placement;
  const prefill = prefillOf(r.placement);
  // Once D decodes it has token 1 too, and P has forgotten the request.
  const fromPrefill = r.phase !== 'decoding' && r.choices.some((c) => !c.finished && c.tokens.length === 0);
  if (prefill !== undefined && fromPrefill) ask(state, r, prefill, prefillAddress(prefill), ctx);
  else ask(state, r, decode, decodeAddress(decode), ctx);
}

export function resyncWorker(state: FrontendState, worker: string, ctx: FrontendCtx): void {
  for (const r of state.requests.values()) {
    const { placement } = r;
    if (placement === undefined) continue;
    if (placement.decode === worker || (prefillOf(placement) === worker && r.phase !== 'decoding'))
      resync(state, r, ctx);
  }
}

export function ask(state: FrontendState, r: Request, worker: string, at: Address, ctx: FrontendCtx): void {
  const { num, attempt } = r;
  r.resyncing = true;
  r.quietSince = clock(state, ctx);
  const positions = r.choices.filter((c) => !c.finished).map((c): [number, number] => [c.index, c.tokens.length]);
  ctx.query(
    at,
    'Resync',
    { reply: replyOf(state, r), attempt, positions },
    'Resynced',
    resyncMs,
    (reply) => ({ type: 'Resynced', num, attempt, worker, reply }),
    () => ({ type: 'ResyncFailed', num, attempt, worker }),
  );
}
