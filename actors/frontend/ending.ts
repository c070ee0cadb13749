/** How an attempt is lost and the next one begins (design 5.4), and how a request ends: once, for whatever reason. */
import { hashToHex } from '../../gpu/index.js';
import { clientError, isFull, meaningOf, type RefusalCode } from '../refusals.js';
import type { Suspicion } from '../registry/liveness.js';
import { abandon, askRouter, decodeAddress, head, passOn, prefillAddress, replyOf } from './dispatch.js';
import { identityOf, isPoison } from './poison.js';
import type { RequestSummary } from './ports.js';
import { prefillOf, type Request } from './request.js';
import { clock, type FrontendCtx, type FrontendState, move } from './state.js';

/** A worker that dies sooner after a request was placed there did not die of it: the order was still on its way. */
const unseenMs = 2;

/** A leg is lost: try elsewhere if that may help, else end the request with its reason. */
export function lost(
  state: FrontendState,
  r: Request,
  code: string,
  detail: string,
  worker: string,
  ctx: FrontendCtx,
): void {
  const meaning = meaningOf(code);
  // A full worker is nobody's failure: wait in line again, and let the router know what it did not see.
  const full = isFull(code);
  // Nor is anything a worker's fault that fails while the broker is away.
  const fair = r.outages === state.outages && state.brokerDownAt === undefined;
  if (full || fair) ctx.tell(state.router, { type: 'Release', num: r.num, attempt: r.attempt, end: { worker, code } });
  if (!full) {
    r.failures++;
    r.lastLoss = code;
    // What the broker lost with its memory is no worker's fault, and the only worker may be the one to serve it.
    // One that is silent may well be: the router keeps it out as long as it is.
    if (r.outages === state.outages && !Object.hasOwn(suspicions, code)) r.tried.add(worker);
    r.queueBy = clock(state, ctx) + state.config.queueMs;
  }
  if (!meaning.elsewhere || r.failures >= state.config.attempts) {
    fail(state, r, code, detail, ctx);
    return;
  }
  ctx.log[full ? 'debug' : 'warn']('attempt lost', { req: r.id, attempt: r.attempt, phase: r.phase, worker, code });
  // A worker that failed by its silence is told too: it may go on with the request.
  abandon(state, r, meaning.inhibit === 'no' ? worker : undefined, ctx);
  move(r, 'lost');
  state.migrations++;
  r.attempt++;
  r.placement = undefined;
  r.resyncing = false;
  r.servedBefore = tokensOf(r);
  for (const choice of r.choices) choice.early = [];
  move(r, 'requeue');
  const { num, attempt } = r;
  const waitMs = full ? 0 : state.retries.take(clock(state, ctx));
  if (waitMs === 0) askRouter(state, r, ctx);
  else {
    r.phaseBy = r.queueBy;
    r.acceptBy = Number.POSITIVE_INFINITY;
    ctx.after(waitMs, { type: 'Again', num, attempt });
  }
}

/** Nothing will come from this worker, or nothing in time. */
export function workerLost(
  state: FrontendState,
  incarnation: string,
  code: RefusalCode,
  reason: string,
  ctx: FrontendCtx,
): void {
  for (const r of state.requests.values()) passOn(state, r, incarnation, ctx);
  const victims = [...state.requests.values()].filter((r) => {
    const { prefill, decode } = r.placement ?? {};
    // P matters only until D has the KV.
    return decode === incarnation || (prefill === incarnation && r.phase !== 'decoding');
  });
  const died = code === 'WORKER_DOWN';
  const now = clock(state, ctx);
  // Placed there in the moment it died, it was never seen there.
  const isSuspect = (r: Request) => tokensOf(r) === r.servedBefore && now - r.dispatchedAt >= unseenMs;
  const suspects = new Set(died ? victims.filter(isSuspect) : []);
  for (const r of victims) {
    try {
      if (suspects.has(r) && isPoison(++r.deaths, suspects.size)) poison(state, r, reason, ctx);
      else lost(state, r, code, reason, incarnation, ctx);
    } catch (error) {
      broke(state, r, error, ctx);
    }
  }
}

/** Workers died of it: it must not take the rest of the fleet with it. */
function poison(state: FrontendState, r: Request, detail: string, ctx: FrontendCtx): void {
  const prompt = identityOf(r.prepared);
  state.poison.add(prompt, clock(state, ctx));
  ctx.log.error('a prompt brought workers down', { req: r.id, deaths: r.deaths, prompt: hashToHex(prompt) });
  state.ports.poison?.(r.id, r.prepared.model, prompt, detail);
  fail(state, r, 'POISON_PROMPT', '', ctx);
}

export function fail(state: FrontendState, r: Request, code: string, detail: string, ctx: FrontendCtx): void {
  abandon(state, r, undefined, ctx);
  r.stream.fail(clientError(code, detail));
  ended(state, r, 'failed', code, ctx);
}

export function complete(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  ctx.tell(state.router, { type: 'Release', num: r.num, attempt: r.attempt, end: 'served' });
  if (r.placement) {
    const body = { reply: replyOf(state, r) };
    const { decode } = r.placement;
    const prefill = prefillOf(r.placement);
    if (prefill !== undefined) ctx.frame(prefillAddress(prefill), 'Ended', body, head(state, r, ctx));
    ctx.frame(decodeAddress(decode), 'Ended', body, head(state, r, ctx));
  }
  r.stream.end({
    promptTokens: r.prepared.prompt.length,
    completionTokens: tokensOf(r),
    cachedTokens: r.cachedTokens,
  });
  ended(state, r, 'complete', '', ctx);
}

/** Doing something for this one of many requests threw: the others go on. */
export function broke(state: FrontendState, r: Request, thrown: unknown, ctx: FrontendCtx): void {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  ctx.log.error('request failed inside', { req: r.id, attempt: r.attempt, error });
  discard(state, r, ctx);
  state.ports.broken?.(r.id, r.attempt, error);
}

/** Ends a request of which nothing can be trusted any more: each part of its end may throw too. */
export function discard(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  const steps = [
    () => abandon(state, r, undefined, ctx),
    () => r.stream.fail(clientError('INTERNAL', '')),
    () => ended(state, r, 'failed', 'INTERNAL', ctx),
  ];
  for (const step of steps) {
    try {
      step();
    } catch (error) {
      ctx.log.error('a part of the end of a request failed', { req: r.id, error });
    }
  }
}

export function ended(
  state: FrontendState,
  r: Request,
  outcome: RequestSummary['outcome'],
  code: string,
  ctx: FrontendCtx,
): void {
  state.byTicket.delete(r.ticket);
  if (!state.requests.delete(r.num)) return;
  state.ended++;
  move(r, 'end');
  const now = clock(state, ctx);
  state.ports.summary({
    id: r.id,
    model: r.prepared.model,
    outcome,
    code,
    promptTokens: r.prepared.prompt.length,
    completionTokens: tokensOf(r),
    attempts: r.attempt,
    queueMs: Math.max(0, (r.dispatchedAt || now) - r.acceptedAt),
    ttftMs: r.firstTokenAt === 0 ? -1 : r.firstTokenAt - r.acceptedAt,
    totalMs: now - r.acceptedAt,
    prefill: (r.placement && prefillOf(r.placement)) ?? '',
    decode: r.placement?.decode ?? '',
  });
}

const suspicions: Readonly<Record<Suspicion, true>> = { WORKER_SILENT: true, ENGINE_WEDGED: true };
const tokensOf = (r: Request) => r.choices.reduce((sum, choice) => sum + choice.tokens.length, 0);
