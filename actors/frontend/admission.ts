/** What a new request must pass before it is one (design 5.1), and what it is then. */
import { sequenceHashes } from '../../gpu/index.js';
import { clientError, type RefusalCode } from '../refusals.js';
import type { RouteRequest } from '../router/choose.js';
import type { DryRunOutcome, RouterMessage } from '../router/messages.js';
import { beginSweeping } from './deadlines.js';
import { askRouter } from './dispatch.js';
import { fail } from './ending.js';
import { identityOf } from './poison.js';
import type { ClientStream, FrontendRequest, Prepared } from './ports.js';
import type { Request } from './request.js';
import { clock, type FrontendCtx, type FrontendMessage, type FrontendState, move } from './state.js';
import { stopScanner } from './stop-strings.js';

const noHashes = new BigUint64Array(0);

export function submit(state: FrontendState, message: FrontendRequest & { type: 'Submit' }, ctx: FrontendCtx): void {
  const { stream } = message;
  const closed = closedBecause(state);
  if (closed !== undefined) {
    stream.fail(clientError(closed, ''));
    return;
  }
  const outcome = state.ports.preprocessor.prepare(message.api, message.body, message.hints);
  if (!outcome.ok) {
    stream.fail(outcome.error);
    return;
  }

  const { prepared } = outcome;
  const now = clock(state, ctx);
  if (state.poison.size > 0 && state.poison.has(identityOf(prepared), now)) {
    stream.fail(clientError('POISON_PROMPT', ''));
    return;
  }
  if (prepared.dryRun === true) {
    dryRun(state, prepared, stream, ctx);
    return;
  }
  const r: Request = {
    num: state.nextNum++,
    ticket: message.ticket,
    id: ctx.id(),
    stream,
    trace: message.trace,
    acceptedAt: now,
    prepared,
    sampling: { ...prepared.sampling, seed: prepared.sampling.seed ?? drawSeed(prepared, ctx) },
    phase: 'accepted',
    attempt: 1,
    placement: undefined,
    tried: new Set(),
    hashes: blockHashes(prepared, state.config.hashBlockTokens),
    choices: Array.from({ length: prepared.n }, (_, index) => ({
      index,
      tokens: [],
      detokenizer: state.ports.detokenizers.open(prepared.model),
      stop: prepared.stop.length > 0 ? stopScanner(prepared.stop) : undefined,
      early: [],
      finished: false,
    })),
    begun: false,
    prefillReleased: false,
    acceptBy: Number.POSITIVE_INFINITY,
    queueBy: now + state.config.queueMs,
    quietSince: now,
    failures: 0,
    lastLoss: '',
    deaths: 0,
    servedBefore: 0,
    outages: state.outages,
    phaseBy: now + state.config.queueMs,
    totalBy: now + state.config.totalMs,
    dispatchedAt: 0,
    firstTokenAt: 0,
    cachedTokens: 0,
    resyncing: false,
    unserved: false,
    repeated: false,
  };
  state.accepted++;
  state.requests.set(r.num, r);
  beginSweeping(state, ctx);
  state.byTicket.set(r.ticket, r.num);
  state.ports.accepted?.(r.id, prepared, message.label);
  move(r, 'prepare');
  move(r, 'admit');
  askRouter(state, r, ctx);
}

/** The router gives it no place, and never will. */
export function unroutable(state: FrontendState, r: Request, code: RefusalCode, ctx: FrontendCtx): void {
  if (code !== 'QUEUE_TIMEOUT') {
    // The worker that it was pinned to failed it: that is the reason, not that no other may take it.
    fail(state, r, r.lastLoss === '' ? code : r.lastLoss, '', ctx);
    return;
  }
  // The router's clock went on while this one stood still. If this one has come so far, too, the sweep knows what to say.
  if (clock(state, ctx) < r.queueBy) askRouter(state, r, ctx);
}

/** Nothing of it outlives the answer: no request is accepted. */
function dryRun(state: FrontendState, prepared: Prepared, stream: ClientStream, ctx: FrontendCtx): void {
  const request: RouteRequest = {
    num: 0,
    attempt: 1,
    id: ctx.id(),
    model: prepared.model,
    choices: prepared.n,
    exclude: new Set(),
    promptTokens: prepared.prompt.length,
    hashes: blockHashes(prepared, state.config.hashBlockTokens),
    queueBy: Number.POSITIVE_INFINITY,
    ...(prepared.wishes === undefined ? {} : { wishes: prepared.wishes }),
  };
  ctx.ask<RouterMessage, DryRunOutcome>(
    state.router,
    (replyTo) => ({ type: 'DryRun', request, replyTo }),
    state.config.acceptMs,
    (outcome) => ({ type: 'DryRunDone', stream, prepared, id: request.id, outcome }),
    () => ({ type: 'DryRunDone', stream, prepared, id: request.id, outcome: undefined }),
  );
}

/** `outcome` undefined: the router has not answered in time. */
export function dryRunDone({ stream, prepared, id, outcome }: FrontendMessage & { type: 'DryRunDone' }): void {
  const { choice, refusal } = outcome ?? {};
  if (choice === undefined) {
    stream.fail(clientError(outcome === undefined ? 'INTERNAL' : (refusal ?? 'NO_PLACE'), ''));
    return;
  }
  const { decode, prefill, expectedTokens } = choice;
  stream.begin(id, { ...prepared, n: 0 });
  const usage = { promptTokens: prepared.prompt.length, completionTokens: 0, cachedTokens: expectedTokens };
  stream.end(usage, { decode, prefill, prompt: prepared.prompt });
}

/** Drawn once: every attempt samples with the same seed. Greedy sampling draws nothing, so equal requests stay equal. */
const drawSeed = (prepared: Prepared, ctx: FrontendCtx) =>
  prepared.sampling.temperature === 0 ? 0 : Math.floor(ctx.random() * 2 ** 48);

/** Why nobody is admitted now. */
function closedBecause(state: FrontendState): RefusalCode | undefined {
  if (state.brokerDownAt !== undefined) return 'BROKER_DOWN';
  return state.requests.size >= state.config.maxRequests ? 'GATEWAY_FULL' : undefined;
}

const blockHashes = ({ prompt, cacheSalt }: Prepared, blockTokens: number) =>
  blockTokens === 0 ? noHashes : sequenceHashes(prompt, blockTokens, cacheSalt);
