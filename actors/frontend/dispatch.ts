/** Where an attempt of a request runs: routed, ordered, heard of, given back. */
import { type Address, address, type Envelope, type Head, type Work } from '../../transport/index.js';
import type { RouterReply } from '../router/messages.js';
import { type Placement, prefillOf, type Request } from './request.js';
import { clock, type FrontendCtx, type FrontendState, move } from './state.js';

/** `r.queueBy` runs on while full workers send it back to the line. */
export function askRouter(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  r.phaseBy = r.queueBy;
  r.acceptBy = Number.POSITIVE_INFINITY;
  const choices = r.choices.filter((choice) => !choice.finished).length;
  ctx.tell(state.router, {
    type: 'Route',
    request: {
      num: r.num,
      attempt: r.attempt,
      id: r.id,
      model: r.prepared.model,
      choices,
      begun: r.choices.some(({ tokens }) => tokens.length > 0),
      exclude: r.tried,
      promptTokens: r.prepared.prompt.length,
      hashes: r.hashes,
      // The router's clock does not stand still with the frontend's.
      queueBy: r.queueBy + ctx.now() - clock(state, ctx),
      ...(r.prepared.wishes === undefined ? {} : { wishes: r.prepared.wishes }),
    },
    replyTo: ctx.self,
  });
}

export function routed(
  state: FrontendState,
  r: Request,
  reply: RouterReply & { type: 'Routed' },
  ctx: FrontendCtx,
): void {
  const now = clock(state, ctx);
  r.placement = { prefill: reply.prefill, decode: reply.decode };
  r.dispatchedAt = now;
  r.outages = state.outages;
  r.prefillReleased = false;
  r.acceptBy = now + state.config.acceptMs;
  // The line is behind it: only the worker's answer is awaited now.
  r.phaseBy = Number.POSITIVE_INFINITY;
  r.repeated = false;
  order(state, r, ctx);
  if (reply.prefill === undefined) dispatched(state, r, now);
}

/** The command that places a request. Workers answer a repeat without computing twice. */
export function order(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  if (r.placement === undefined) return;
  const { prefill, decode } = r.placement;
  const body = { work: workOf(r), reply: replyOf(state, r) };
  if (prefill === undefined) send(state, r, decodeAddress(decode), 'Generate', body, ctx);
  else send(state, r, decodeAddress(decode), 'Reserve', { ...body, prefill }, ctx);
}

const workOf = (r: Request): Work => ({
  model: r.prepared.model,
  prompt: r.prepared.prompt,
  choices: r.choices
    .filter((choice) => !choice.finished)
    .map(({ index, tokens }) => ({ index, generated: Uint32Array.from(tokens) })),
  sampling: r.sampling,
  maxTokens: r.prepared.maxTokens,
  minTokens: r.prepared.minTokens,
  ignoreEos: r.prepared.ignoreEos,
  logprobs: r.prepared.logprobs,
  cacheSalt: r.prepared.cacheSalt,
});

function dispatched(state: FrontendState, r: Request, now: number): void {
  move(r, 'dispatch');
  r.quietSince = now;
  r.phaseBy = now + state.config.firstTokenMs;
}

export function accepted(
  state: FrontendState,
  r: Request,
  { worker }: Envelope<'Accepted'>['body'],
  ctx: FrontendCtx,
): void {
  if (r.placement === undefined) return;
  started(state, r, clock(state, ctx));
  if (worker === computing(r.placement)) r.acceptBy = Number.POSITIVE_INFINITY;
}

/**
 * D holds its grant and has told P: its own Accepted says so, or whatever P says first, for two publishers have no mutual
 * order. From now on P must answer.
 */
export function started(state: FrontendState, r: Request, now: number): void {
  if (r.phase !== 'queued') return;
  r.acceptBy = now + state.config.acceptMs;
  dispatched(state, r, now);
}

/** Its leg computes the prompt. Whatever it says means that it has accepted: the Accepted itself may have been lost. */
export function progress(
  state: FrontendState,
  r: Request,
  { worker }: Envelope<'Progress'>['body'],
  ctx: FrontendCtx,
): void {
  if (r.placement === undefined) return;
  started(state, r, clock(state, ctx));
  if (r.phase !== 'prefilling') return;
  if (worker === computing(r.placement)) r.acceptBy = Number.POSITIVE_INFINITY;
  r.quietSince = clock(state, ctx);
  r.phaseBy = r.quietSince + state.config.firstTokenMs;
}

export function releasePrefill(state: FrontendState, r: Request, ctx: FrontendCtx): void {
  if (r.prefillReleased) return;
  r.prefillReleased = true;
  ctx.tell(state.router, { type: 'PrefillDone', num: r.num, attempt: r.attempt });
}

/** Tells every leg of the current attempt, except one that is dead anyway, and gives the units back. */
export function abandon(state: FrontendState, r: Request, except: string | undefined, ctx: FrontendCtx): void {
  ctx.tell(state.router, { type: 'Release', num: r.num, attempt: r.attempt });
  if (!r.placement) return;
  const { decode } = r.placement;
  const prefill = prefillOf(r.placement);
  const body = { reply: replyOf(state, r), reason: r.phase };
  if (prefill !== undefined && prefill !== except) send(state, r, prefillAddress(prefill), 'Cancel', body, ctx);
  if (decode !== except) send(state, r, decodeAddress(decode), 'Cancel', body, ctx);
}

function send<T extends 'Reserve' | 'Generate' | 'Cancel'>(
  state: FrontendState,
  r: Request,
  to: Address,
  type: T,
  body: Envelope<T>['body'],
  ctx: FrontendCtx,
): void {
  const { num, attempt } = r;
  const worker = to.split('.')[1] as string;
  ctx.command(to, type, body, head(state, r, ctx), (code) => ({ type: 'Undelivered', num, attempt, worker, code }));
}

export const head = (state: FrontendState, r: Request, ctx: FrontendCtx): Head => ({
  req: r.id,
  attempt: r.attempt,
  budgetMs: Math.max(1, Math.floor(r.totalBy - clock(state, ctx))),
  ...(r.trace === undefined ? {} : { trace: r.trace }),
});

export const replyOf = (state: FrontendState, r: Request) => ({ gateway: state.config.gateway, num: r.num });

/** Who computes the prompt. */
export const computing = ({ prefill, decode }: Placement) => prefill ?? decode;
export const prefillAddress = (incarnation: string) => address('prefill', incarnation, 'worker');
export const decodeAddress = (incarnation: string) => address('decode', incarnation, 'worker');

/** Nothing can be expected of the prefill worker that D left the prompt to: D asks for another. False: it is none of D's. */
export function passOn(state: FrontendState, r: Request, taker: string, ctx: FrontendCtx): boolean {
  if (r.placement?.taker !== taker || r.phase === 'decoding') return false;
  const { taker: _, ...placement } = r.placement;
  r.placement = placement;
  const body = { reply: replyOf(state, r), taker };
  ctx.frame(decodeAddress(placement.decode), 'TakerLost', body, head(state, r, ctx));
  return true;
}
