/**
 * Deadlines are fields of a request that a sweep looks at, so that a token costs no timer. They run on the frontend's own clock, which
 * stands still while the broker is away, or this process.
 */
import { meaningOf } from '../refusals.js';
import { order } from './dispatch.js';
import { broke, fail, lost } from './ending.js';
import { resync } from './repair.js';
import type { Request } from './request.js';
import { clock, type FrontendCtx, type FrontendState } from './state.js';
import { begin } from './text.js';

/** How often deadlines are checked: a tenth of the shortest default. */
const sweepMs = 100;
const growthMs = 1_000;
/** A sweep that is later than this was held up with the whole process: deadlines did not run meanwhile. */
const frozenMs = 250;
/** A request that waits longer than this gets its headers, so that keep-alive comments can flow. */
const beginAfterMs = 1_000;
/** A worker that says nothing of a request for this long is asked. */
const quietMs = 2_000;
/** A worker that could not be asked is asked again after this long. */
const againMs = 500;

/** One sweep for all requests. */
export function beginSweeping(state: FrontendState, ctx: FrontendCtx): void {
  if (state.sweeping) return;
  state.sweeping = true;
  state.sweptAt = ctx.now();
  ctx.after(sweepMs, { type: 'Sweep' });
}

export function sweep(state: FrontendState, ctx: FrontendCtx): void {
  // An idle gateway sleeps: the next request starts the sweep again.
  state.sweeping = state.requests.size > 0;
  if (!state.sweeping) return;
  ctx.after(sweepMs, { type: 'Sweep' });
  const heldUp = ctx.now() - state.sweptAt - sweepMs;
  state.sweptAt = ctx.now();
  // Whoever stood still himself has read nothing: what came meanwhile is still in the socket.
  if (heldUp > frozenMs && state.brokerDownAt === undefined) state.paused += heldUp;
  if (state.brokerDownAt !== undefined) {
    if (ctx.now() - state.brokerDownAt < state.config.brokerOutageMs) return;
    for (const r of [...state.requests.values()]) {
      try {
        fail(state, r, 'BROKER_DOWN', '', ctx);
      } catch (error) {
        broke(state, r, error, ctx);
      }
    }
    return;
  }
  tellGrowth(state, ctx);
  const now = clock(state, ctx);
  for (const r of [...state.requests.values()]) {
    try {
      lookAt(state, r, now, ctx);
    } catch (error) {
      broke(state, r, error, ctx);
    }
  }
}

/** The router books output as it grows: seldom, for a block is many tokens. */
function tellGrowth(state: FrontendState, ctx: FrontendCtx): void {
  if (ctx.now() - state.growthToldAt < growthMs) return;
  state.growthToldAt = ctx.now();
  const requests: [number, number, number][] = [];
  for (const { num, attempt, phase, choices } of state.requests.values()) {
    if (phase !== 'decoding') continue;
    requests.push([num, attempt, choices.reduce((sum, { tokens }) => sum + tokens.length, 0)]);
  }
  if (requests.length > 0) ctx.tell(state.router, { type: 'Grown', requests });
}

function lookAt(state: FrontendState, r: Request, now: number, ctx: FrontendCtx): void {
  if (now - r.acceptedAt > beginAfterMs) begin(r);
  if (now > r.totalBy) fail(state, r, 'TOTAL_TIMEOUT', '', ctx);
  else if (!r.repeated && now > r.acceptBy - state.config.acceptMs / 2) {
    // Once: the command or its answer may have been lost, which is no reason to give up a worker.
    r.repeated = true;
    order(state, r, ctx);
  } else if (now > r.acceptBy) lost(state, r, 'ACCEPT_TIMEOUT', '', suspect(r), ctx);
  else if (now > r.phaseBy) expired(state, r, ctx);
  else if (isQuiet(state, r, now) || r.choices.some((choice) => choice.early.length > 0)) resync(state, r, ctx);
}

/**
 * Nothing for a while: the last frame, or the only one, may have been the one that was lost. Whoever has not said that it has the
 * request is asked before it is given up.
 */
const isQuiet = (state: FrontendState, r: Request, now: number) =>
  now - r.quietSince >
  (r.acceptBy === Number.POSITIVE_INFINITY
    ? quietAfterMs(state)
    : Math.min(quietAfterMs(state), state.config.acceptMs / 2));

const quietAfterMs = ({ config }: FrontendState) => Math.min(quietMs, config.betweenTokensMs / 4);

function expired(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  const why = r.lastLoss === '' ? '' : ` The attempt before: ${meaningOf(r.lastLoss).text}`;
  if (r.phase === 'queued') fail(state, r, r.unserved ? 'NO_WORKER' : 'QUEUE_TIMEOUT', why, ctx);
  else lost(state, r, r.phase === 'prefilling' ? 'FIRST_TOKEN_TIMEOUT' : 'TOKEN_TIMEOUT', '', suspect(r), ctx);
}

/** Whose turn it was when a deadline passed. */
function suspect(r: Request): string {
  const { prefill, decode } = r.placement ?? { prefill: undefined, decode: '' };
  return r.phase === 'prefilling' && prefill !== undefined ? prefill : decode;
}

/** The broker went, or came back: deadlines stand still meanwhile. */
export function broker(state: FrontendState, up: boolean, ctx: FrontendCtx): void {
  if (!up) {
    state.brokerDownAt ??= ctx.now();
    return;
  }
  if (state.brokerDownAt === undefined) return;
  state.paused += ctx.now() - state.brokerDownAt;
  state.brokerDownAt = undefined;
  state.outages++;
  // Frames published during the outage are gone: repeat the order that nobody has accepted, ask for what is missing.
  for (const r of [...state.requests.values()]) {
    try {
      if (r.phase === 'queued') order(state, r, ctx);
      else resync(state, r, ctx);
    } catch (error) {
      broke(state, r, error, ctx);
    }
  }
}

/** A worker could not be asked: it may be back later than we are after an outage. */
export function askAgain(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  r.resyncing = false;
  r.quietSince = clock(state, ctx) - quietAfterMs(state) + againMs;
}
