/** What a new request must pass before it is one (design 5.1), and what it is then. */
import { sequenceHashes } from '../../gpu/index.js';
import { clientError, type RefusalCode } from '../refusals.js';
import { beginSweeping } from './deadlines.js';
import { askRouter } from './dispatch.js';
import { identityOf } from './poison.js';
import type { FrontendRequest, Prepared } from './ports.js';
import type { Request } from './request.js';
import { clock, type FrontendCtx, type FrontendState, move } from './state.js';
import { stopScanner } from './stop-strings.js';

const noHashes = new BigUint64Array(0);

export function submit(state: FrontendState, message: FrontendRequest & { type: 'Submit' }, ctx: FrontendCtx): void {
  const { stream } = message;
  const closed = closedBecause(state);
  if (closed !== undefined) {
    stream.fail(clientError(closed, ''));
    return;
  }
  const outcome = state.ports.preprocessor.prepare(message.api, message.body);
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
  state.ports.accepted?.(r.id, prepared);
  move(r, 'prepare');
  move(r, 'admit');
  askRouter(state, r, ctx);
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
