/**
 * The frontend actor owns every request of its gateway from accept to end (design 5.1). Workers and router are asked, the
 * client is told; a leg that fails is replaced by the next attempt with prompt + tokens already delivered (design 5.4).
 */
import { hashToHex, sequenceHashes } from '../../gpu/index.js';
import {
  type Address,
  address,
  type Envelope,
  finishCodes,
  type Head,
  type StepFrame,
  type Work,
} from '../../transport/index.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { clientError, isFull, meaningOf, type RefusalCode } from '../refusals.js';
import type { Suspicion } from '../registry/liveness.js';
import type { RouterMessage, RouterReply, WorkerLoss } from '../router/router.js';
import { type Arrival, arrive } from './delivery.js';
import { isPoison, PoisonList } from './poison.js';
import type {
  DetokenizerFactory,
  FrontendRequest,
  Prepared,
  Preprocessor,
  RequestSummary,
  TokenLogprob,
} from './ports.js';
import { type ChoiceState, nextPhase, type PhaseEvent, type Placement, type Request } from './request.js';
import { RetryBudget, type RetryBudgetConfig } from './retries.js';
import { stopScanner } from './stop-strings.js';

export interface FrontendConfig {
  readonly gateway: string;
  /** A worker must answer Accepted or Refused within this. */
  readonly acceptMs: number;
  readonly queueMs: number;
  /** From dispatch to the first token; Progress renews it. */
  readonly firstTokenMs: number;
  readonly betweenTokensMs: number;
  readonly totalMs: number;
  /** Attempts a request may use in all. */
  readonly attempts: number;
  readonly maxRequests: number;
  /** Tokens of the blocks by which prompts are compared with what workers have cached; 0: the router does not ask. */
  readonly hashBlockTokens: number;
  /** Attempts of all requests together, beyond their first. */
  readonly retries: RetryBudgetConfig;
  /** While the broker is away deadlines pause for at most this long. */
  readonly brokerOutageMs: number;
}

export interface FrontendPorts {
  readonly preprocessor: Preprocessor;
  readonly detokenizers: DetokenizerFactory;
  readonly summary: (summary: RequestSummary) => void;
  /** A prompt that brought workers down, by the hash of its tokens: for the dead letters. */
  readonly poison?: (id: string, model: string, prompt: bigint, detail: string) => void;
  /** A request was accepted: from now on it ends exactly once, and `summary` says how. */
  readonly accepted?: (id: string, prepared: Prepared) => void;
}

type WorkerNews = Envelope<'Accepted' | 'Refused' | 'Failed' | 'Progress'>;

export type FrontendMessage =
  | FrontendRequest
  | RouterReply
  | WorkerNews
  | { readonly type: 'Frame'; readonly frame: StepFrame }
  | WorkerLoss
  /** Who has sent frames since the last time it was asked? */
  | { readonly type: 'HeardFrom'; readonly replyTo: Ref<{ readonly workers: readonly string[] }> }
  | { readonly type: 'Broker'; readonly up: boolean }
  | { readonly type: 'Drain' }
  /** Its turn in the retry budget has come. */
  | { readonly type: 'Again'; readonly num: number; readonly attempt: number }
  | { readonly type: 'Sweep' }
  | {
      readonly type: 'Undelivered';
      readonly num: number;
      readonly attempt: number;
      readonly worker: string;
      readonly code: string;
    }
  | {
      readonly type: 'Resynced';
      readonly num: number;
      readonly attempt: number;
      readonly worker: string;
      readonly reply: Envelope<'Resynced'>['body'];
    }
  | { readonly type: 'ResyncFailed'; readonly num: number; readonly attempt: number; readonly worker: string }
  | { readonly type: 'Facts'; readonly replyTo: Ref<FrontendFacts> };

export interface FrontendFacts {
  readonly inFlight: number;
  readonly accepted: number;
  readonly ended: number;
  /** Accepted requests that are neither ended nor in flight: 0, or a defect. */
  readonly leaked: number;
  readonly byPhase: Readonly<Record<string, number>>;
  readonly stale: number;
  readonly conflicts: number;
  readonly migrations: number;
  /** Prompts that are kept out because workers died of them. */
  readonly poisoned: number;
  /** Workers whose frames are counted: those that live and have sent some. */
  readonly peers: number;
}

export interface FrontendState {
  readonly requests: Map<number, Request>;
  readonly byTicket: Map<number, number>;
  /** Last step frame of each worker: a hole means tokens were lost on the way. */
  readonly frames: Map<string, number>;
  /** Workers that sent frames since the registry last asked. */
  readonly heard: Set<string>;
  nextNum: number;
  accepted: number;
  ended: number;
  stale: number;
  conflicts: number;
  migrations: number;
  readonly retries: RetryBudget;
  readonly poison: PoisonList;
  draining: boolean;
  /** A Sweep is on its way. */
  sweeping: boolean;
  /** When deadlines were looked at last. */
  sweptAt: number;
  brokerDownAt: number | undefined;
  /** How often the broker has been away. */
  outages: number;
  /** Time that deadlines did not run: see `clock`. */
  paused: number;
}

/** How often deadlines are checked: a tenth of the shortest default. */
const sweepMs = 100;
/** A sweep that is later than this was held up with the whole process: deadlines did not run meanwhile. */
const frozenMs = 250;
/** A request that waits longer than this gets its headers, so that keep-alive comments can flow. */
const beginAfterMs = 1_000;
const resyncMs = 1_000;
/** A worker that says nothing of a request for this long is asked. */
const quietMs = 2_000;
/** A worker that could not be asked is asked again after this long. */
const againMs = 500;
/** A worker that dies sooner after a request was placed there did not die of it: the order was still on its way. */
const unseenMs = 2;
const noHashes = new BigUint64Array(0);

export function frontendActor(
  config: FrontendConfig,
  ports: FrontendPorts,
  router: Ref<RouterMessage>,
): Behaviour<FrontendMessage, FrontendState> {
  type C = Ctx<FrontendMessage>;

  /** The frontend's clock: stands still while the broker is away, so that an outage fails nobody. */
  const clock = (state: FrontendState, ctx: C) => (state.brokerDownAt ?? ctx.now()) - state.paused;

  const move = (r: Request, event: PhaseEvent) => {
    r.phase = nextPhase(r.phase, event);
  };

  const head = (state: FrontendState, r: Request, ctx: C): Head => ({
    req: r.id,
    attempt: r.attempt,
    budgetMs: Math.max(1, Math.floor(r.totalBy - clock(state, ctx))),
    ...(r.trace === undefined ? {} : { trace: r.trace }),
  });

  const replyOf = (r: Request) => ({ gateway: config.gateway, num: r.num });

  function submit(state: FrontendState, message: FrontendRequest & { type: 'Submit' }, ctx: C): void {
    const { stream } = message;
    const closed = closedBecause(state);
    if (closed !== undefined) {
      stream.fail(clientError(closed, ''));
      return;
    }
    const outcome = ports.preprocessor.prepare(message.api, message.body);
    if (!outcome.ok) {
      stream.fail(outcome.error);
      return;
    }

    const { prepared } = outcome;
    const now = clock(state, ctx);
    if (state.poison.size > 0 && state.poison.has(identity(prepared), now)) {
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
      hashes: blockHashes(prepared, config.hashBlockTokens),
      choices: Array.from({ length: prepared.n }, (_, index) => ({
        index,
        tokens: [],
        detokenizer: ports.detokenizers.open(prepared.model),
        stop: prepared.stop.length > 0 ? stopScanner(prepared.stop) : undefined,
        early: [],
        finished: false,
      })),
      begun: false,
      prefillReleased: false,
      acceptBy: Number.POSITIVE_INFINITY,
      queueBy: now + config.queueMs,
      quietSince: now,
      failures: 0,
      lastLoss: '',
      deaths: 0,
      servedBefore: 0,
      outages: state.outages,
      phaseBy: now + config.queueMs,
      totalBy: now + config.totalMs,
      dispatchedAt: 0,
      firstTokenAt: 0,
      cachedTokens: 0,
      resyncing: false,
      repeated: false,
    };
    state.accepted++;
    state.requests.set(r.num, r);
    if (!state.sweeping) {
      state.sweeping = true;
      state.sweptAt = ctx.now();
      ctx.after(sweepMs, { type: 'Sweep' });
    }
    state.byTicket.set(r.ticket, r.num);
    ports.accepted?.(r.id, prepared);
    move(r, 'prepare');
    move(r, 'admit');
    askRouter(r, ctx);
  }

  /** Drawn once: every attempt samples with the same seed. Greedy sampling draws nothing, so equal requests stay equal. */
  const drawSeed = (prepared: Prepared, ctx: C) =>
    prepared.sampling.temperature === 0 ? 0 : Math.floor(ctx.random() * 2 ** 48);

  function closedBecause(state: FrontendState): RefusalCode | undefined {
    if (state.draining) return 'DRAINING';
    if (state.brokerDownAt !== undefined) return 'BROKER_DOWN';
    return state.requests.size >= config.maxRequests ? 'GATEWAY_FULL' : undefined;
  }

  /** `r.queueBy` runs on while full workers send it back to the line. */
  function askRouter(r: Request, ctx: C): void {
    r.phaseBy = r.queueBy;
    r.acceptBy = Number.POSITIVE_INFINITY;
    const choices = r.choices.filter((choice) => !choice.finished).length;
    ctx.tell(router, {
      type: 'Route',
      request: {
        num: r.num,
        attempt: r.attempt,
        id: r.id,
        model: r.prepared.model,
        choices,
        exclude: r.tried,
        promptTokens: r.prepared.prompt.length,
        hashes: r.hashes,
      },
      replyTo: ctx.self,
    });
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

  function routed(state: FrontendState, r: Request, reply: RouterReply & { type: 'Routed' }, ctx: C): void {
    const now = clock(state, ctx);
    r.placement = { prefill: reply.prefill, decode: reply.decode };
    r.dispatchedAt = now;
    r.outages = state.outages;
    r.prefillReleased = false;
    r.acceptBy = now + config.acceptMs;
    // The line is behind it: only the worker's answer is awaited now.
    r.phaseBy = Number.POSITIVE_INFINITY;
    r.repeated = false;
    order(state, r, ctx);
    if (reply.prefill === undefined) dispatched(r, now);
  }

  /** The command that places a request. Workers answer a repeat without computing twice. */
  function order(state: FrontendState, r: Request, ctx: C): void {
    if (r.placement === undefined) return;
    const { prefill, decode } = r.placement;
    const body = { work: workOf(r), reply: replyOf(r) };
    if (prefill === undefined) send(state, r, decodeAddress(decode), 'Generate', body, ctx);
    else send(state, r, decodeAddress(decode), 'Reserve', { ...body, prefill }, ctx);
  }

  function dispatched(r: Request, now: number): void {
    move(r, 'dispatch');
    r.quietSince = now;
    r.phaseBy = now + config.firstTokenMs;
  }

  function send<T extends 'Reserve' | 'Generate' | 'Cancel'>(
    state: FrontendState,
    r: Request,
    to: Address,
    type: T,
    body: Envelope<T>['body'],
    ctx: C,
  ): void {
    const { num, attempt } = r;
    const worker = to.split('.')[1] as string;
    ctx.command(to, type, body, head(state, r, ctx), (code) => ({ type: 'Undelivered', num, attempt, worker, code }));
  }

  function accepted(state: FrontendState, r: Request, { worker }: Envelope<'Accepted'>['body'], ctx: C): void {
    if (r.placement === undefined) return;
    started(r, clock(state, ctx));
    if (worker === computing(r.placement)) r.acceptBy = Number.POSITIVE_INFINITY;
  }

  /**
   * D holds its grant and has told P: its own Accepted says so, or whatever P says first, for two publishers have no mutual
   * order. From now on P must answer.
   */
  function started(r: Request, now: number): void {
    if (r.phase !== 'queued') return;
    r.acceptBy = now + config.acceptMs;
    dispatched(r, now);
  }

  /** Its leg computes the prompt. Whatever it says means that it has accepted: the Accepted itself may have been lost. */
  function progress(state: FrontendState, r: Request, { worker }: Envelope<'Progress'>['body'], ctx: C): void {
    if (r.placement === undefined) return;
    started(r, clock(state, ctx));
    if (r.phase !== 'prefilling') return;
    if (worker === computing(r.placement)) r.acceptBy = Number.POSITIVE_INFINITY;
    r.quietSince = clock(state, ctx);
    r.phaseBy = r.quietSince + config.firstTokenMs;
  }

  /** With the first token, in one write with it; a failure before it gets a status of its own. */
  function begin(r: Request): void {
    if (r.begun) return;
    r.begun = true;
    r.stream.begin(r.id, r.prepared);
  }

  /** A leg is lost: try elsewhere if that may help, else end the request with its reason. */
  function lost(state: FrontendState, r: Request, code: string, detail: string, worker: string, ctx: C): void {
    const meaning = meaningOf(code);
    // A full worker is nobody's failure: wait in line again, and let the router know what it did not see.
    const full = isFull(code);
    // Nor is anything a worker's fault that fails while the broker is away.
    const fair = r.outages === state.outages && state.brokerDownAt === undefined;
    if (full || fair) ctx.tell(router, { type: 'Release', num: r.num, attempt: r.attempt, end: { worker, code } });
    if (!full) {
      r.failures++;
      r.lastLoss = code;
      // What the broker lost with its memory is no worker's fault, and the only worker may be the one to serve it.
      // One that is silent may well be: the router keeps it out as long as it is.
      if (r.outages === state.outages && !Object.hasOwn(suspicions, code)) r.tried.add(worker);
      r.queueBy = clock(state, ctx) + config.queueMs;
    }
    if (!meaning.elsewhere || r.failures >= config.attempts) {
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
    if (waitMs === 0) askRouter(r, ctx);
    else {
      r.phaseBy = r.queueBy;
      r.acceptBy = Number.POSITIVE_INFINITY;
      ctx.after(waitMs, { type: 'Again', num, attempt });
    }
  }

  /** Workers died of it: it must not take the rest of the fleet with it. */
  function poison(state: FrontendState, r: Request, detail: string, ctx: C): void {
    const prompt = identity(r.prepared);
    state.poison.add(prompt, clock(state, ctx));
    ctx.log.error('a prompt brought workers down', { req: r.id, deaths: r.deaths, prompt: hashToHex(prompt) });
    ports.poison?.(r.id, r.prepared.model, prompt, detail);
    fail(state, r, 'POISON_PROMPT', '', ctx);
  }

  /** Tells every leg of the current attempt, except one that is dead anyway, and gives the units back. */
  function abandon(state: FrontendState, r: Request, except: string | undefined, ctx: C): void {
    ctx.tell(router, { type: 'Release', num: r.num, attempt: r.attempt });
    if (!r.placement) return;
    const { prefill, decode } = r.placement;
    const body = { reply: replyOf(r), reason: r.phase };
    if (prefill !== undefined && prefill !== except) send(state, r, prefillAddress(prefill), 'Cancel', body, ctx);
    if (decode !== except) send(state, r, decodeAddress(decode), 'Cancel', body, ctx);
  }

  function fail(state: FrontendState, r: Request, code: string, detail: string, ctx: C): void {
    abandon(state, r, undefined, ctx);
    r.stream.fail(clientError(code, detail));
    ended(state, r, 'failed', code, ctx);
  }

  function complete(state: FrontendState, r: Request, ctx: C): void {
    ctx.tell(router, { type: 'Release', num: r.num, attempt: r.attempt, end: 'served' });
    if (r.placement) {
      const body = { reply: replyOf(r) };
      const { prefill, decode } = r.placement;
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

  function ended(state: FrontendState, r: Request, outcome: RequestSummary['outcome'], code: string, ctx: C): void {
    move(r, 'end');
    if (state.requests.delete(r.num)) state.ended++;
    state.byTicket.delete(r.ticket);
    const now = clock(state, ctx);
    ports.summary({
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
      prefill: r.placement?.prefill ?? '',
      decode: r.placement?.decode ?? '',
    });
  }

  /** The data path: one call per step frame, no message, promise or timer per token. */
  function frame(state: FrontendState, { worker, seq, items }: StepFrame, ctx: C): void {
    // A worker counts its frames to this gateway from 1.
    const last = state.frames.get(worker);
    let expected = last !== undefined;
    state.heard.add(worker);
    const now = clock(state, ctx);
    for (const item of items) {
      const r = state.requests.get(item.num);
      if (r === undefined || item.attempt !== r.attempt || r.placement === undefined) {
        state.stale++;
        continue;
      }
      expected = true;
      const choice = r.choices[item.choice];
      if (choice === undefined) continue;
      if (item.cached !== undefined) r.cachedTokens = item.cached;
      if (r.phase === 'queued' || r.phase === 'prefilling') {
        const { num, attempt, cachedTokens } = r;
        ctx.tell(router, { type: 'FirstToken', num, attempt, cachedTokens });
      }
      served(r, worker === r.placement.decode, now, ctx);
      const verdict = arrive(r, choice, item, deliver);
      if (r.firstTokenAt === 0 && choice.tokens.length > 0) r.firstTokenAt = now;
      if (verdict !== 'ok' || choice.finished) settle(state, r, verdict, worker, ctx);
    }
    // What the dead still say must not bring them back.
    if (!expected) return;
    state.frames.set(worker, seq);
    if (seq !== (last ?? 0) + 1) resyncWorker(state, worker, ctx);
  }

  /** Tokens came, from P or from D: whoever gave them has the request, and the next are due. */
  function served(r: Request, byDecode: boolean, now: number, ctx: C): void {
    begin(r);
    started(r, now);
    if (byDecode) {
      if (r.phase !== 'decoding') move(r, 'decodeToken');
      releasePrefill(r, ctx);
    } else if (r.phase === 'prefilling') move(r, 'firstToken');
    r.acceptBy = Number.POSITIVE_INFINITY;
    r.quietSince = now;
    r.phaseBy = now + config.betweenTokensMs;
  }

  /** What follows from an arrival: the end of the request, a repair, or an alarm. */
  function settle(state: FrontendState, r: Request, verdict: Arrival, worker: string, ctx: C): void {
    if (verdict === 'conflict') {
      state.conflicts++;
      ctx.log.error('two different tokens at one position', { req: r.id, attempt: r.attempt, worker });
      lost(state, r, 'STREAM_BROKEN', '', worker, ctx);
    } else if (verdict === 'overrun') resync(state, r, ctx);
    else if (r.choices.every((choice) => choice.finished)) complete(state, r, ctx);
  }

  function releasePrefill(r: Request, ctx: C): void {
    if (r.prefillReleased) return;
    r.prefillReleased = true;
    ctx.tell(router, { type: 'PrefillDone', num: r.num, attempt: r.attempt });
  }

  function deliver(
    r: Request,
    choice: ChoiceState,
    tokens: readonly number[],
    finish: number,
    logprobs: readonly TokenLogprob[] | undefined,
  ): void {
    if (choice.finished) return;
    // Token by token, however they travelled: a client gets an event for each, and none counts after a stop string.
    const last = tokens.length - 1;
    for (let at = 0; at < last; at++) {
      const text = choice.detokenizer.push(tokens[at] as number);
      say(r, choice, text, 1, finishCodes.none, logprobs?.slice(at, at + 1));
      if (choice.finished) {
        choice.tokens.length -= last - at;
        return;
      }
    }
    let text = last < 0 ? '' : choice.detokenizer.push(tokens[last] as number);
    if (finish !== finishCodes.none) text += choice.detokenizer.end();
    say(r, choice, text, last < 0 ? 0 : 1, finish, logprobs?.slice(Math.max(0, last)));
  }

  /** The next text of a choice to its client, unless a stop string ends it. */
  function say(
    r: Request,
    choice: ChoiceState,
    piece: string,
    tokens: number,
    finish: number,
    logprobs: readonly TokenLogprob[] | undefined,
  ): void {
    let text = piece;
    let stopped = false;
    if (choice.stop !== undefined) {
      const found = choice.stop.push(text);
      stopped = found.stopped;
      text = finish !== finishCodes.none && !stopped ? found.text + choice.stop.end() : found.text;
    }
    if (tokens > 0 || text !== '') r.stream.text(choice.index, text, tokens, logprobs);
    if (stopped || finish !== finishCodes.none) {
      choice.finished = true;
      choice.early = [];
      r.stream.finish(choice.index, stopped || finish !== finishCodes.length ? 'stop' : 'length');
    }
  }

  function resyncWorker(state: FrontendState, worker: string, ctx: C): void {
    for (const r of state.requests.values()) {
      const { prefill, decode } = r.placement ?? {};
      if (decode === worker || (prefill === worker && r.phase !== 'decoding')) resync(state, r, ctx);
    }
  }

  /** Asks whoever decodes (or still prefills) to repeat from what the client has. */
  function resync(state: FrontendState, r: Request, ctx: C): void {
    if (r.resyncing || !r.placement || r.phase === 'queued') return;
    const { prefill, decode } = r.placement;
    // Once D decodes it has token 1 too, and P has forgotten the request.
    const fromPrefill = r.phase !== 'decoding' && r.choices.some((c) => !c.finished && c.tokens.length === 0);
    if (prefill !== undefined && fromPrefill) ask(state, r, prefill, prefillAddress(prefill), ctx);
    else ask(state, r, decode, decodeAddress(decode), ctx);
  }

  function ask(state: FrontendState, r: Request, worker: string, at: Address, ctx: C): void {
    const { num, attempt } = r;
    r.resyncing = true;
    r.quietSince = clock(state, ctx);
    const positions = r.choices.filter((c) => !c.finished).map((c): [number, number] => [c.index, c.tokens.length]);
    ctx.query(
      at,
      'Resync',
      { reply: replyOf(r), attempt, positions },
      'Resynced',
      resyncMs,
      (reply) => ({ type: 'Resynced', num, attempt, worker, reply }),
      () => ({ type: 'ResyncFailed', num, attempt, worker }),
    );
  }

  function resynced(state: FrontendState, r: Request, message: FrontendMessage & { type: 'Resynced' }, ctx: C): void {
    r.resyncing = false;
    const { worker, reply } = message;
    if (r.placement === undefined) return;
    const { prefill, decode } = r.placement;
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
      (prefill === undefined || reply.items.some(({ position, tokens }) => position + tokens.length > 1));
    if (reply.items.length > 0) {
      served(r, decodes, now, ctx);
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

  function sweep(state: FrontendState, ctx: C): void {
    // An idle gateway sleeps: the next request starts the sweep again.
    state.sweeping = state.requests.size > 0;
    if (!state.sweeping) return;
    ctx.after(sweepMs, { type: 'Sweep' });
    const heldUp = ctx.now() - state.sweptAt - sweepMs;
    state.sweptAt = ctx.now();
    // Whoever stood still himself has read nothing: what came meanwhile is still in the socket.
    if (heldUp > frozenMs && state.brokerDownAt === undefined) state.paused += heldUp;
    if (state.brokerDownAt !== undefined) {
      if (ctx.now() - state.brokerDownAt < config.brokerOutageMs) return;
      for (const r of [...state.requests.values()]) fail(state, r, 'BROKER_DOWN', '', ctx);
      return;
    }
    const now = clock(state, ctx);
    for (const r of [...state.requests.values()]) {
      if (now - r.acceptedAt > beginAfterMs) begin(r);
      if (now > r.totalBy) fail(state, r, 'TOTAL_TIMEOUT', '', ctx);
      else if (!r.repeated && now > r.acceptBy - config.acceptMs / 2) {
        // Once: the command or its answer may have been lost, which is no reason to give up a worker.
        r.repeated = true;
        order(state, r, ctx);
      } else if (now > r.acceptBy) lost(state, r, 'ACCEPT_TIMEOUT', '', suspect(r), ctx);
      else if (now > r.phaseBy) expired(state, r, ctx);
      else if (isQuiet(r, now) || r.choices.some((choice) => choice.early.length > 0)) resync(state, r, ctx);
    }
  }

  /**
   * Nothing for a while: the last frame, or the only one, may have been the one that was lost. Whoever has not said that it has the
   * request is asked before it is given up.
   */
  const isQuiet = (r: Request, now: number) =>
    now - r.quietSince >
    (r.acceptBy === Number.POSITIVE_INFINITY ? quietAfterMs : Math.min(quietAfterMs, config.acceptMs / 2));
  const quietAfterMs = Math.min(quietMs, config.betweenTokensMs / 4);

  function expired(state: FrontendState, r: Request, ctx: C): void {
    const why = r.lastLoss === '' ? '' : ` The attempt before: ${meaningOf(r.lastLoss).text}`;
    if (r.phase === 'queued') fail(state, r, 'QUEUE_TIMEOUT', why, ctx);
    else lost(state, r, r.phase === 'prefilling' ? 'FIRST_TOKEN_TIMEOUT' : 'TOKEN_TIMEOUT', '', suspect(r), ctx);
  }

  /** Whose turn it was when a deadline passed. */
  function suspect(r: Request): string {
    const { prefill, decode } = r.placement ?? { prefill: undefined, decode: '' };
    return r.phase === 'prefilling' && prefill !== undefined ? prefill : decode;
  }

  /** Nothing will come from this worker, or nothing in time. */
  function workerLost(state: FrontendState, incarnation: string, code: RefusalCode, reason: string, ctx: C): void {
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
      if (suspects.has(r) && isPoison(++r.deaths, suspects.size)) poison(state, r, reason, ctx);
      else lost(state, r, code, reason, incarnation, ctx);
    }
  }

  function broker(state: FrontendState, up: boolean, ctx: C): void {
    if (!up) {
      state.brokerDownAt ??= ctx.now();
      return;
    }
    if (state.brokerDownAt === undefined) return;
    state.paused += ctx.now() - state.brokerDownAt;
    state.brokerDownAt = undefined;
    state.outages++;
    // Frames published during the outage are gone: repeat the order that nobody has accepted, ask for what is missing.
    for (const r of state.requests.values()) {
      if (r.phase === 'queued') order(state, r, ctx);
      else resync(state, r, ctx);
    }
  }

  /** The request a message of this attempt belongs to; anything older is counted and dropped. */
  function current(state: FrontendState, num: number, attempt: number): Request | undefined {
    const r = state.requests.get(num);
    if (r?.attempt === attempt) return r;
    state.stale++;
    return undefined;
  }

  return {
    name: 'frontend',
    capacity: 100_000,
    start() {
      return {
        sweeping: false,
        sweptAt: 0,
        heard: new Set(),
        requests: new Map(),
        byTicket: new Map(),
        frames: new Map(),
        nextNum: 1,
        accepted: 0,
        ended: 0,
        stale: 0,
        conflicts: 0,
        migrations: 0,
        retries: new RetryBudget(config.retries),
        poison: new PoisonList(),
        draining: false,
        brokerDownAt: undefined,
        outages: 0,
        paused: 0,
      };
    },
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Frame':
          frame(state, message.frame, ctx);
          break;
        case 'Submit':
          submit(state, message, ctx);
          break;
        case 'ClientGone': {
          const r = state.requests.get(state.byTicket.get(message.ticket) ?? -1);
          if (!r) break;
          abandon(state, r, undefined, ctx);
          ended(state, r, 'cancelled', 'client_gone', ctx);
          break;
        }
        case 'Routed': {
          const r = current(state, message.num, message.attempt);
          if (r) routed(state, r, message, ctx);
          break;
        }
        case 'Queued':
          break;
        case 'Unroutable': {
          const r = current(state, message.num, message.attempt);
          if (r) fail(state, r, message.code, '', ctx);
          break;
        }
        case 'Accepted': {
          const r = current(state, message.body.num, message.attempt);
          if (r) accepted(state, r, message.body, ctx);
          break;
        }
        case 'Progress': {
          const r = current(state, message.body.num, message.attempt);
          if (r) progress(state, r, message.body, ctx);
          break;
        }
        case 'Refused':
        case 'Failed': {
          const r = current(state, message.body.num, message.attempt);
          const { code, message: detail, worker } = message.body;
          // A prefill leg that fails after D has taken over concerns nobody.
          if (r && !(message.body.leg === 'prefill' && r.phase === 'decoding'))
            lost(state, r, code, detail, worker, ctx);
          break;
        }
        case 'Undelivered': {
          const r = current(state, message.num, message.attempt);
          if (r) lost(state, r, message.code, '', message.worker, ctx);
          break;
        }
        case 'Resynced': {
          const r = current(state, message.num, message.attempt);
          if (r) resynced(state, r, message, ctx);
          break;
        }
        case 'ResyncFailed': {
          const r = current(state, message.num, message.attempt);
          if (!r) break;
          r.resyncing = false;
          // The worker may be back later than we are after an outage.
          r.quietSince = clock(state, ctx) - quietAfterMs + againMs;
          break;
        }
        case 'WorkerGone':
          state.frames.delete(message.incarnation);
          workerLost(state, message.incarnation, 'WORKER_DOWN', message.reason, ctx);
          break;
        case 'WorkerSuspect':
          workerLost(state, message.incarnation, message.code, '', ctx);
          break;
        case 'HeardFrom':
          ctx.tell(message.replyTo, { workers: [...state.heard] });
          state.heard.clear();
          break;
        case 'Broker':
          broker(state, message.up, ctx);
          break;
        case 'Again': {
          const r = current(state, message.num, message.attempt);
          if (r?.phase === 'queued' && r.placement === undefined) askRouter(r, ctx);
          break;
        }
        case 'Drain':
          state.draining = true;
          break;
        case 'Sweep':
          sweep(state, ctx);
          break;
        case 'Facts':
          ctx.tell(message.replyTo, facts(state, clock(state, ctx)));
          break;
      }
      return state;
    },
    stopped(state) {
      for (const r of state.requests.values()) r.stream.fail(clientError('DRAINING', ''));
    },
  };
}

function facts(state: FrontendState, now: number): FrontendFacts {
  const byPhase: Record<string, number> = {};
  for (const { phase } of state.requests.values()) byPhase[phase] = (byPhase[phase] ?? 0) + 1;
  const inFlight = state.requests.size;
  const { accepted, ended, stale, conflicts, migrations } = state;
  const poisoned = state.poison.count(now);
  return {
    inFlight,
    accepted,
    ended,
    leaked: accepted - ended - inFlight,
    byPhase,
    stale,
    conflicts,
    migrations,
    poisoned,
    peers: state.frames.size,
  };
}

const suspicions: Readonly<Record<Suspicion, true>> = { WORKER_SILENT: true, ENGINE_WEDGED: true };
/** Of a prompt, whatever else its request says. */
const identity = ({ prompt, cacheSalt }: Prepared) => sequenceHashes(prompt, prompt.length, cacheSalt)[0] as bigint;
const blockHashes = ({ prompt, cacheSalt }: Prepared, blockTokens: number) =>
  blockTokens === 0 ? noHashes : sequenceHashes(prompt, blockTokens, cacheSalt);
const tokensOf = (r: Request) => r.choices.reduce((sum, choice) => sum + choice.tokens.length, 0);
/** Who computes the prompt. */
const computing = ({ prefill, decode }: Placement) => prefill ?? decode;
const prefillAddress = (incarnation: string) => address('prefill', incarnation, 'worker');
const decodeAddress = (incarnation: string) => address('decode', incarnation, 'worker');
