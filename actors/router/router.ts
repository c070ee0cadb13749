/**
 * The router: picks P and D together for each request, counts its own dispatches at once (load reports come later), and
 * holds what cannot be placed yet in a bounded first-come queue, where it occupies nothing (design 5.3). It knows what the workers'
 * caches hold, and remembers why it decided as it did.
 */
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { isFull, meaningOf } from '../refusals.js';
import { Caches, type CachesConfig } from './caches.js';
import { type Choice, choose, type Fleet, type RouteRequest, type Worker } from './choose.js';
import type { CostConfig } from './cost.js';
import type { DisaggRouting } from './disagg.js';
import { type InhibitionConfig, Inhibitions, pairKey } from './inhibition.js';
import { type EntryKey, Ledger } from './ledger.js';
import { Line } from './line.js';
import type { AttemptEnd, Hits, RouterFacts, RouterMessage, RouterReply } from './messages.js';
import { RouteLog, type RouteRecord } from './route-log.js';
import type { SelectionMode } from './select.js';

export interface RouterConfig {
  /** Incarnation of the gateway whose router it is. */
  readonly gateway: string;
  readonly mode: SelectionMode;
  /** Tokens of a KV block, as prompts are hashed by. */
  readonly blockTokens: number;
  /** Of a worker that computes the prompt; mode kv only, as is `caches`. */
  readonly cost: CostConfig;
  readonly caches: CachesConfig;
  readonly disagg?: DisaggRouting;
  /** Most requests that wait for a worker; one more is refused with QUEUE_FULL. */
  readonly queueLimit: number;
  readonly inhibition: InhibitionConfig;
}

interface Placed {
  readonly attempt: number;
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly at: number;
  readonly promptTokens: number;
  readonly record: RouteRecord;
}

interface Waiting {
  readonly request: RouteRequest;
  readonly replyTo: Ref<RouterReply>;
}

export interface RouterState extends Fleet {
  readonly workers: Map<string, Worker>;
  readonly placed: Map<number, Placed>;
  readonly line: Line<Waiting>;
  readonly log: RouteLog;
  readonly hits: Hits;
  /** Workers whose cache was found to lack what it should have: said once. */
  readonly drifted: Set<string>;
  turn: number;
}

/** Blocks that a cache lacks before it is worth a line. */
const driftBlocks = 4;

export function routerActor(config: RouterConfig): Behaviour<RouterMessage, RouterState> {
  return {
    name: 'router',
    capacity: 100_000,
    start: () => ({
      workers: new Map(),
      placed: new Map(),
      line: new Line(),
      inhibitions: new Inhibitions(config.inhibition),
      ledger: new Ledger(config.blockTokens),
      caches: config.mode === 'kv' ? new Caches(config.caches) : undefined,
      log: new RouteLog(),
      hits: { prompt: 0, expected: 0, cached: 0, missed: 0, unforeseen: 0 },
      drifted: new Set(),
      turn: 0,
    }),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Route':
          route(state, message, config, ctx);
          return state;
        case 'Release':
          state.line.drop(message.num, message.attempt);
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, message.end, ctx);
          release(state, config.gateway, message.num);
          markFull(state, message.end);
          break;
        case 'FirstToken':
          began(state, config, message, ctx);
          return state;
        case 'PrefillDone':
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, 'served', ctx);
          freePrefill(state, config.gateway, message.num);
          break;
        case 'InstanceUp': {
          const { incarnation } = message.info;
          const known = state.workers.get(incarnation);
          state.workers.set(incarnation, {
            reported: 0,
            reportedBlocks: 0,
            full: false,
            suspect: undefined,
            ...known,
            info: message.info,
          });
          break;
        }
        case 'InstanceGone': {
          const { incarnation, reason, frontend } = message;
          state.workers.delete(incarnation);
          state.inhibitions.forget(incarnation);
          state.caches?.forget(incarnation);
          state.drifted.delete(incarnation);
          ctx.tell(frontend, { type: 'WorkerGone', incarnation, reason });
          break;
        }
        case 'KvChange':
          // Also of a worker that is out of view for a moment: what was missed would be believed when it comes back.
          state.caches?.change(message.incarnation, message.rank, message.ops);
          return state;
        case 'Explain':
          ctx.tell(message.replyTo, { records: state.log.find(message.id) });
          return state;
        case 'DryRun': {
          const { request, replyTo } = message;
          ctx.tell(
            replyTo,
            choose(state, request, config, ctx.now(), state.turn, () => ctx.random()),
          );
          return state;
        }
        case 'Suspect': {
          const { incarnation, code, frontend } = message;
          const worker = state.workers.get(incarnation);
          if (worker !== undefined) {
            worker.suspect = code;
            inhibit(state, incarnation, code, Number.POSITIVE_INFINITY, ctx);
          }
          ctx.tell(frontend, { type: 'WorkerSuspect', incarnation, code });
          return state;
        }
        case 'Cleared': {
          const worker = state.workers.get(message.incarnation);
          if (!worker) return state;
          worker.suspect = undefined;
          break;
        }
        case 'Facts':
          ctx.tell(message.replyTo, factsOf(state, ctx.now()));
          return state;
        case 'Load': {
          const worker = state.workers.get(message.incarnation);
          if (!worker) return state;
          worker.reported = message.busySlots + message.waiting;
          worker.reportedBlocks = message.usedKvBlocks;
          if (worker.reported < (worker.info.slots ?? 1)) worker.full = false;
          break;
        }
      }
      drain(state, config, ctx);
      return state;
    },
  };
}

function route(state: RouterState, waiting: Waiting, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  const { num, attempt } = waiting.request;
  // A request that has begun is not turned away: there are never more of those than the frontend holds.
  if (attempt === 1 && state.line.size >= config.queueLimit) {
    refuse(waiting, 'QUEUE_FULL', ctx);
    return;
  }
  state.line.add(waiting.request, waiting);
  drain(state, config, ctx);
  if (!state.line.has(num)) return;
  const served = [...state.workers.values()].some(({ info }) => info.model === waiting.request.model);
  ctx.tell(waiting.replyTo, { type: 'Queued', num, attempt, served });
}

function refuse({ request, replyTo }: Waiting, code: 'QUEUE_FULL' | 'TOO_MANY_CHOICES', ctx: Ctx<RouterMessage>): void {
  ctx.tell(replyTo, { type: 'Unroutable', num: request.num, attempt: request.attempt, code });
}

/** Places whatever fits; one that fits nowhere does not block those that ask for something else. */
function drain(state: RouterState, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  if (state.line.size === 0) return;
  state.line.offer((waiting) => {
    const { request, replyTo } = waiting;
    if (tooMany(state, request)) {
      refuse(waiting, 'TOO_MANY_CHOICES', ctx);
      return true;
    }
    const placement = place(state, request, config, ctx);
    if (placement === undefined) return false;
    ctx.tell(replyTo, { type: 'Routed', num: request.num, attempt: request.attempt, ...placement });
    return true;
  });
}

/** Books what was chosen and says where, or books nothing. */
function place(
  state: RouterState,
  request: RouteRequest,
  config: RouterConfig,
  ctx: Ctx<RouterMessage>,
): Choice | undefined {
  const { num, attempt, id, promptTokens, hashes } = request;
  const now = ctx.now();
  const { choice, decisions, disagg } = choose(state, request, config, now, state.turn, () => ctx.random());
  if (choice === undefined) {
    // Why it waits is worth knowing once.
    if (state.log.find(id).at(-1)?.attempt !== attempt) {
      state.log.add({ id, attempt, at: ctx.wallTime(), decisions, placed: undefined, expectedTokens: 0 });
    }
    return undefined;
  }
  const { decode, prefill, expectedTokens } = choice;
  state.turn++;
  // A request that is routed again without a Release in between (it cannot, but if it did) must not leak its units.
  release(state, config.gateway, num);
  const placed = prefill === undefined ? { decode } : { prefill, decode };
  const why = disagg === undefined ? {} : { disagg };
  const record: RouteRecord = { id, attempt, at: ctx.wallTime(), decisions, placed, expectedTokens, ...why };
  state.log.add(record);
  state.placed.set(num, { attempt, decode, prefill, at: now, promptTokens, record });
  const entry = { origin: config.gateway, num, attempt, promptTokens, hashes, at: now };
  const toCompute = promptTokens - expectedTokens;
  const onDecode = {
    incarnation: decode,
    units: request.choices,
    prefillTokens: prefill === undefined ? toCompute : 0,
  };
  state.ledger.add({ ...entry, ...onDecode });
  if (prefill !== undefined) state.ledger.add({ ...entry, incarnation: prefill, units: 1, prefillTokens: toCompute });
  state.caches?.assume(prefill ?? decode, hashes, now);
  for (const key of keysOf(decode, prefill)) state.inhibitions.placed(key, num);
  return choice;
}

const keysOf = (decode: string, prefill: string | undefined): readonly string[] =>
  prefill === undefined ? [decode] : [decode, prefill, pairKey(prefill, decode)];

/** What the end of an attempt says of the workers it was placed on. */
function learn(state: RouterState, num: number, end: AttemptEnd | undefined, ctx: Ctx<RouterMessage>): void {
  const placed = state.placed.get(num);
  if (placed === undefined) return;
  const { decode, prefill: computedBy } = placed;
  const { inhibitions } = state;
  if (end !== undefined && end !== 'served') {
    const { worker, code } = end;
    const meaning = meaningOf(code);
    if (meaning.drop) state.workers.delete(worker);
    // Whoever is gone, alone or as half of a pair, needs no keeping out.
    const there = (incarnation: string) => state.workers.has(incarnation);
    if (meaning.inhibit === 'pair' && computedBy !== undefined) {
      if (there(decode) && there(computedBy)) inhibit(state, pairKey(computedBy, decode), code, placed.at, ctx);
    } else if (meaning.inhibit !== 'no' && there(worker)) inhibit(state, worker, code, placed.at, ctx);
  }
  for (const key of keysOf(decode, computedBy)) {
    if (end === 'served') inhibitions.served(key, num, ctx.now());
    else inhibitions.withdrawn(key, num);
  }
}

/** After its release, which would otherwise have it tried again at once, and again. */
function markFull(state: RouterState, end: AttemptEnd | undefined): void {
  if (end === undefined || end === 'served' || !isFull(end.code)) return;
  const worker = state.workers.get(end.worker);
  if (worker) worker.full = true;
}

function inhibit(state: RouterState, key: string, reason: string, placedAt: number, ctx: Ctx<RouterMessage>): void {
  const before = state.inhibitions.total;
  state.inhibitions.failed(key, reason, placedAt, ctx.now());
  if (state.inhibitions.total > before) ctx.log.warn('out of routing for a while', { worker: key, reason });
}

function factsOf(state: RouterState, now: number): RouterFacts {
  const suspects: { incarnation: string; reason: string }[] = [];
  for (const [incarnation, { suspect }] of state.workers) {
    if (suspect !== undefined) suspects.push({ incarnation, reason: suspect });
  }
  const { line, inhibitions } = state;
  return {
    queued: line.size,
    inhibited: inhibitions.list(now),
    suspects,
    inhibitions: inhibitions.total,
    index: state.caches?.stats(),
    hits: { ...state.hits },
  };
}

/** No worker that serves this model could ever hold so many choices at once. */
function tooMany(state: RouterState, request: RouteRequest): boolean {
  let most = 0;
  for (const { info } of state.workers.values()) {
    if (info.component === 'decode' && info.model === request.model) most = Math.max(most, info.slots ?? 1);
  }
  return most > 0 && request.choices > most;
}

/** The prompt is no load any more, and what the cache had of it shows how true the router's view of it is. */
function began(
  state: RouterState,
  config: RouterConfig,
  { num, attempt, cachedTokens }: RouterMessage & { type: 'FirstToken' },
  ctx: Ctx<RouterMessage>,
): void {
  const placed = state.placed.get(num);
  if (placed?.attempt !== attempt || placed.record.cachedTokens !== undefined) return;
  const worker = placed.prefill ?? placed.decode;
  state.ledger.prefillDone({ origin: config.gateway, num, attempt, incarnation: worker });
  if (cachedTokens === undefined) return;
  placed.record.cachedTokens = cachedTokens;
  const { hits, drifted } = state;
  const { expectedTokens, id } = placed.record;
  const missed = Math.max(0, expectedTokens - cachedTokens);
  hits.prompt += placed.promptTokens;
  hits.expected += expectedTokens;
  hits.cached += cachedTokens;
  hits.missed += missed;
  hits.unforeseen += Math.max(0, cachedTokens - expectedTokens);
  if (missed < driftBlocks * config.blockTokens || drifted.has(worker)) return;
  drifted.add(worker);
  ctx.log.warn('a cache lacks what it was expected to have', { req: id, worker, expectedTokens, cachedTokens });
}

function release(state: RouterState, origin: string, num: number): void {
  const placed = state.placed.get(num);
  if (!placed) return;
  freePrefill(state, origin, num);
  state.placed.delete(num);
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.decode });
}

function freePrefill(state: RouterState, origin: string, num: number): void {
  const placed = state.placed.get(num);
  if (placed?.prefill === undefined) return;
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.prefill });
}

/** Repeats are harmless: the ledger frees an entry once. */
function free(state: RouterState, key: EntryKey): void {
  const worker = state.workers.get(key.incarnation);
  if (state.ledger.free(key) && worker !== undefined) worker.full = false;
}
