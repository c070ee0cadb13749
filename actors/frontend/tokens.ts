/** Tokens come: in step frames, or as the answer to a Resync. */
import type { StepFrame } from '../../transport/index.js';
import { type Arrival, arrive } from './delivery.js';
import { computing, decodeAddress, releasePrefill, started } from './dispatch.js';
import { broke, complete, lost } from './ending.js';
import { ask, resync, resyncWorker } from './repair.js';
import { isLeg, prefillOf, type Request } from './request.js';
import { clock, type FrontendCtx, type FrontendMessage, type FrontendState, move } from './state.js';
import { dismiss } from './strays.js';
import { begin, deliver } from './text.js';

/** The data path: one call per step frame, no message, promise or timer per token. */
export function frame(state: FrontendState, { worker, seq, items }: StepFrame, ctx: FrontendCtx): void {
  // A worker counts its frames to this gateway from 1.
  const last = state.frames.get(worker);
  let expected = last !== undefined;
  state.heard.add(worker);
  const now = clock(state, ctx);
  for (const item of items) {
    const r = state.requests.get(item.num);
    if (r === undefined || item.attempt !== r.attempt || r.placement === undefined || !isLeg(r, worker)) {
      state.stale++;
      if (r === undefined || item.attempt < r.attempt) dismiss(state, worker, item.num, item.attempt, ctx);
      continue;
    }
    expected = true;
    const choice = r.choices[item.choice];
    if (choice === undefined) continue;
    try {
      if (item.cached !== undefined) r.cachedTokens = item.cached;
      served(state, r, worker === r.placement.decode, r.cachedTokens, now, ctx);
      const verdict = arrive(r, choice, item, deliver);
      if (r.firstTokenAt === 0 && choice.tokens.length > 0) r.firstTokenAt = now;
      if (verdict !== 'ok' || choice.finished) settle(state, r, verdict, worker, ctx);
    } catch (error) {
      broke(state, r, error, ctx);
    }
  }
  // What the dead still say must not bring them back.
  if (!expected) return;
  state.frames.set(worker, seq);
  if (seq !== (last ?? 0) + 1) resyncWorker(state, worker, ctx);
}

export function resynced(
  state: FrontendState,
  r: Request,
  message: FrontendMessage & { type: 'Resynced' },
  ctx: FrontendCtx,
): void {
  r.resyncing = false;
  const { worker, reply } = message;
  if (r.placement === undefined) return;
  const { decode } = r.placement;
  if (!reply.known) {
    // P forgets a request once D took it over; D may not have it yet. The sweep decides if neither ever answers.
    if (worker !== decode) ask(state, r, decode, decodeAddress(decode), ctx);
    else if (r.phase === 'decoding') lost(state, r, 'STREAM_BROKEN', '', worker, ctx);
    return;
  }
  if (worker === computing(r.placement)) r.acceptBy = Number.POSITIVE_INFINITY;
  const { num, attempt } = r;
  const now = clock(state, ctx);
  // D repeats P's token 1 before it decodes by itself.
  const decodes =
    worker === decode &&
    (prefillOf(r.placement) === undefined || reply.items.some(({ position, tokens }) => position + tokens.length > 1));
  if (reply.items.length > 0) {
    // A Resync repeats tokens, not what was cached.
    served(state, r, decodes, undefined, now, ctx);
    if (r.firstTokenAt === 0) r.firstTokenAt = now;
  }
  for (const { choice: index, position, tokens, finish, logprobs } of reply.items) {
    const choice = r.choices[index];
    if (choice === undefined) continue;
    const item = {
      num,
      attempt,
      choice: index,
      position,
      tokens: [...tokens],
      finish,
      ...(logprobs !== undefined && { logprobs }),
    };
    const verdict = arrive(r, choice, item, deliver);
    if (verdict === 'conflict') {
      settle(state, r, verdict, worker, ctx);
      return;
    }
  }
  settle(state, r, 'ok', worker, ctx);
}

/** Tokens came, from P or from D: whoever gave them has the request, and the next are due. */
function served(
  state: FrontendState,
  r: Request,
  byDecode: boolean,
  cachedTokens: number | undefined,
  now: number,
  ctx: FrontendCtx,
): void {
  begin(r);
  if (r.phase === 'queued' || r.phase === 'prefilling') {
    const { num, attempt } = r;
    ctx.tell(state.router, { type: 'FirstToken', num, attempt, cachedTokens });
  }
  started(state, r, now);
  if (byDecode) {
    if (r.phase !== 'decoding') move(r, 'decodeToken');
    releasePrefill(state, r, ctx);
  } else if (r.phase === 'prefilling') move(r, 'firstToken');
  r.acceptBy = Number.POSITIVE_INFINITY;
  r.quietSince = now;
  r.phaseBy = now + state.config.betweenTokensMs;
}

/** What follows from an arrival: the end of the request, a repair, or an alarm. */
function settle(state: FrontendState, r: Request, verdict: Arrival, worker: string, ctx: FrontendCtx): void {
  if (verdict === 'conflict') {
    state.conflicts++;
    ctx.log.error('two different tokens at one position', { req: r.id, attempt: r.attempt, worker });
    lost(state, r, 'STREAM_BROKEN', '', worker, ctx);
  } else if (verdict === 'overrun') resync(state, r, ctx);
  else if (r.choices.every((choice) => choice.finished)) complete(state, r, ctx);
}
