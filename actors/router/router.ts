/**
 * The router: picks P and D together for each request, counts its own dispatches at once (load reports come later), and
 * holds what cannot be placed yet in a bounded queue, where it occupies nothing (design 5.3). It knows what the workers' caches hold,
 * and remembers why it decided as it did.
 */
import { parts } from '../../transport/index.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { isFull, meaningOf } from '../refusals.js';
import { pinTo, SessionAffinity, type SessionsConfig } from './affinity.js';
import { Caches, type CachesConfig } from './caches.js';
import { type Choice, choose, type Fleet, type Outcome, type RouteRequest, type Worker } from './choose.js';
import type { CostConfig } from './cost.js';
import type { DisaggRouting } from './disagg.js';
import { type InhibitionConfig, Inhibitions, pairKey } from './inhibition.js';
import { type EntryKey, Ledger } from './ledger.js';
import type { AttemptEnd, Hits, RouterFacts, RouterMessage, RouterReply } from './messages.js';
import { classOf, type EnqueueRefusal, type Pool, type QueueConfig, RouterQueue, type Waiting } from './queue.js';
import { givesWay, type ReplicaSync, replicaNews, replicaSync, tellSoon } from './replica-sync.js';
import { RouteLog, type RouteRecord } from './route-log.js';
import type { RouteTape } from './route-tape.js';
import type { SelectionMode } from './select.js';
import { allBusy, busyWorkers, capacityOf, type RouterTuning, routerTuning } from './tuning.js';
import { impossible, laneOf, named, type Unroutable } from './wishes.js';

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
  /** One request more than it may hold is refused with QUEUE_FULL or CLASS_FULL. */
  readonly queue: QueueConfig;
  /** What holds until a Tune says otherwise. */
  readonly tuning?: RouterTuning;
  /** Undefined: sessions do not matter. */
  readonly sessions?: SessionsConfig;
  readonly inhibition: InhibitionConfig;
  /** Where decisions are written down; undefined: nowhere. */
  readonly tape?: RouteTape | undefined;
}

interface Placed {
  readonly attempt: number;
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly at: number;
  readonly promptTokens: number;
  readonly record: RouteRecord;
}

interface Asked {
  readonly request: RouteRequest;
  readonly replyTo: Ref<RouterReply>;
}

export interface RouterState extends Fleet {
  readonly workers: Map<string, Worker>;
  readonly placed: Map<number, Placed>;
  readonly queue: RouterQueue<Asked>;
  readonly sessions: SessionAffinity | undefined;
  /** How often a request was refused, by reason. */
  readonly refused: Map<string, number>;
  readonly affinity: Record<NonNullable<RouteRecord['session']>, number>;
  tuning: RouterTuning;
  readonly log: RouteLog;
  readonly replicas: ReplicaSync;
  readonly hits: Hits;
  /** Workers whose cache was found to lack what it should have: said once. */
  readonly drifted: Set<string>;
  turn: number;
}

const noTuning: RouterTuning = { requestLimit: 0 };
const nowhere: Outcome = { choice: undefined, decisions: [], shortOf: undefined };

/** Blocks that a cache lacks before it is worth a line. */
const driftBlocks = 4;

/** What is running and cached, known of by the other routers' word too. */
function shared({ gateway, blockTokens, mode, caches: cachesConfig }: RouterConfig) {
  const ledger = new Ledger(blockTokens);
  const caches = mode === 'kv' ? new Caches(cachesConfig) : undefined;
  const replicas = replicaSync(gateway, ledger, caches);
  return { ledger, caches, replicas, peers: replicas.peers };
}

export function routerActor(config: RouterConfig): Behaviour<RouterMessage, RouterState> {
  return {
    name: 'router',
    capacity: 100_000,
    start: () => ({
      tuning: routerTuning(config.tuning ?? noTuning),
      sessions: config.sessions === undefined ? undefined : new SessionAffinity(config.sessions),
      refused: new Map(),
      affinity: { new: 0, kept: 0, moved: 0 },
      workers: new Map(),
      placed: new Map(),
      queue: new RouterQueue(config.queue),
      inhibitions: new Inhibitions(config.inhibition),
      ...shared(config),
      log: new RouteLog(),
      hits: { prompt: 0, expected: 0, cached: 0, missed: 0, unforeseen: 0 },
      drifted: new Set(),
      turn: 0,
    }),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Route':
          route(state, message, config, ctx);
          tellSoon(state.replicas, ctx);
          return state;
        case 'Release':
          state.queue.drop(message.num, message.attempt);
          if (!state.queue.has(message.num)) state.replicas.voice.waitsNot(message.num);
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, message.end, ctx);
          release(state, config.gateway, message.num);
          markFull(state, message.end);
          break;
        case 'FirstToken':
          began(state, config, message, ctx);
          tellSoon(state.replicas, ctx);
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
          state.sessions?.workerGone(incarnation);
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
          const asked = viable(state, request, config);
          ctx.tell(
            replyTo,
            typeof asked === 'string' ? { ...nowhere, refusal: asked } : seek(state, asked, config, ctx),
          );
          return state;
        }
        case 'Tune':
          state.tuning = routerTuning({ ...state.tuning, ...message.tuning });
          break;
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
        case 'Replica':
          failedElsewhere(state, message, ctx);
          if (!replicaNews(state.replicas, message, ctx)) return state;
          break;
        case 'PeerUp':
        case 'PeerGone':
        case 'WhenInStep':
        case 'ReplicaTell':
        case 'ReplicaLook':
        case 'GivenWay':
          if (!replicaNews(state.replicas, message, ctx)) return state;
          break;
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

function route(state: RouterState, { request, replyTo }: Asked, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  const { num, attempt, model } = request;
  const { queue } = state;
  queue.remove(num);
  const waiting = waitingOf(state, { request, replyTo }, config, ctx.now());
  // Whoever waits for the same was refused a place since the last thing that changed; so would this one be.
  const behind = queue.holdsBack(waiting);
  const shortOf = behind ? undefined : offer(state, waiting.item, config, ctx);
  if (!behind && shortOf === undefined) return;
  const serving = [...state.workers.values()].filter(({ info }) => info.model === model && info.component === 'decode');
  const refusal = queue.enqueue(waiting, serving.length, shortOf);
  if (refusal === undefined) {
    state.replicas.voice.waits({ num, ...claimOf(request) });
    ctx.tell(replyTo, { type: 'Queued', num, attempt, served: serving.length > 0 });
  } else refuse(state, waiting.item, overflow[refusal], ctx);
}

const overflow: Readonly<Record<EnqueueRefusal, Unroutable>> = {
  limit: 'QUEUE_FULL',
  pool: 'QUEUE_FULL',
  lanes: 'QUEUE_FULL',
  requests: 'CLASS_FULL',
  'prompt-tokens': 'CLASS_FULL',
  'cached-tokens': 'CLASS_FULL',
};

function waitingOf({ caches }: RouterState, item: Asked, config: RouterConfig, now: number): Waiting<Asked> {
  const { num, attempt, promptTokens, hashes, queueBy, wishes, begun } = item.request;
  const { classes } = config.queue;
  // One class in the order of arrival does not ask how long a prompt is.
  const measured = classes.length > 1 || classes[0]?.policy === 'wspt';
  let cachedTokens = 0;
  if (measured && caches !== undefined) {
    for (const { device } of caches.overlaps(hashes, now).values()) cachedTokens = Math.max(cachedTokens, device);
    cachedTokens *= config.blockTokens;
  }
  return {
    num,
    attempt,
    class: classOf(classes, wishes?.class, promptTokens - cachedTokens),
    lane: laneOf(item.request),
    // Whoever is tried again is as urgent as its deadline is near, however often full workers have sent it back.
    arrivedMs: attempt > 1 ? queueBy : now,
    deadlineMs: queueBy,
    // A stream that stands goes before those that full workers have sent back without a token.
    strictPriority: begun === true ? Number.MAX_SAFE_INTEGER : (wishes?.strictPriority ?? 0),
    priority: wishes?.priority ?? 0,
    promptTokens,
    cachedTokens,
    item,
  };
}

function refuse(state: RouterState, { request, replyTo }: Asked, code: Unroutable, ctx: Ctx<RouterMessage>): void {
  state.refused.set(code, (state.refused.get(code) ?? 0) + 1);
  state.replicas.voice.waitsNot(request.num);
  ctx.tell(replyTo, { type: 'Unroutable', num: request.num, attempt: request.attempt, code });
}

/** Places whatever fits; one that fits nowhere does not block those that ask for something else. */
function drain(state: RouterState, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  for (const { item } of state.queue.expire(ctx.now())) refuse(state, item, 'QUEUE_TIMEOUT', ctx);
  if (state.queue.size > 0) state.queue.offer(({ item }) => offer(state, item, config, ctx));
  tellSoon(state.replicas, ctx);
}

/** Answered, with a place or with a reason why there is none; or the pool that has no room for it at the moment. */
function offer(state: RouterState, asked: Asked, config: RouterConfig, ctx: Ctx<RouterMessage>): Pool | undefined {
  const request = viable(state, asked.request, config);
  if (typeof request === 'string') {
    refuse(state, asked, request, ctx);
    return undefined;
  }
  if (givesWay(state.replicas, claimOf(request), () => freeSlots(state, request.model), ctx)) return 'decode';
  const placement = place(state, request, config, ctx);
  if (typeof placement === 'string') return placement;
  ctx.tell(asked.replyTo, { type: 'Routed', num: request.num, attempt: request.attempt, ...placement });
  return undefined;
}

/** The request as it can be compared with workers; or why it cannot be served. */
function viable(state: RouterState, request: RouteRequest, config: RouterConfig): RouteRequest | Unroutable {
  const { workers, ledger, tuning, queue } = state;
  const asked = named(workers, request);
  if (typeof asked === 'string') return asked;
  const reason = impossible(workers, asked, (asked.wishes?.mode ?? config.mode) === 'direct');
  if (reason !== undefined) return reason;
  // What waits already was let in when it came.
  if (request.attempt > 1 || queue.has(request.num)) return asked;
  if (!allBusy(workers, ledger, asked, tuning, onlyRemote(config))) return asked;
  return asked.wishes?.pin === undefined ? 'ALL_BUSY' : 'PINNED_BUSY';
}

const claimOf = ({ model, begun, queueBy, choices }: RouteRequest) => ({
  model,
  again: begun === true,
  queueBy,
  units: choices,
});

/** Of the pool that has fewer. */
function freeSlots({ workers, ledger, tuning }: RouterState, model: string): number {
  const free = { decode: 0, prefill: 0 };
  let prefills = 0;
  for (const [incarnation, { info, full, suspect }] of workers) {
    if (info.component === 'gateway' || info.model !== model || info.draining || suspect !== undefined) continue;
    if (info.component === 'prefill') prefills++;
    if (!full) free[info.component] += Math.max(0, capacityOf(info, tuning) - ledger.load(incarnation).units);
  }
  return prefills === 0 ? free.decode : Math.min(free.decode, free.prefill);
}

/** While there are prefill workers, they compute every prompt. */
function onlyRemote({ disagg }: RouterConfig): boolean {
  return disagg === undefined || (disagg.flow === 'prefill-first' && disagg.policy === 'always');
}

interface Found extends Outcome {
  readonly session?: RouteRecord['session'];
}

/** Where it would go now. What belongs to a session goes where that was served before, if there is room. */
function seek(state: RouterState, request: RouteRequest, config: RouterConfig, ctx: Ctx<RouterMessage>): Found {
  const now = ctx.now();
  const among = (asked: RouteRequest) => choose(state, asked, config, now, state.turn, () => ctx.random());
  const { sessions } = state;
  const { session, pin } = request.wishes ?? {};
  if (sessions === undefined || session === undefined || pin !== undefined) return among(request);
  const bound = sessions.find(session, now);
  if (bound === undefined) return { ...among(request), session: 'new' };
  const kept = among({ ...request, wishes: { ...request.wishes, pin: pinTo(bound, onlyRemote(config)) } });
  if (kept.choice !== undefined) return { ...kept, session: 'kept' };
  const moved = among(request);
  return { ...moved, decisions: [...kept.decisions, ...moved.decisions], session: 'moved' };
}

/** Books what was chosen and says where, or books nothing and says what is missing. */
function place(
  state: RouterState,
  request: RouteRequest,
  config: RouterConfig,
  ctx: Ctx<RouterMessage>,
): Choice | Pool {
  const { num, attempt, id, promptTokens, hashes, wishes } = request;
  const now = ctx.now();
  const { choice, decisions, disagg, session, shortOf = 'decode' } = seek(state, request, config, ctx);
  if (choice === undefined) {
    // Why it waits is worth knowing once.
    if (state.log.find(id).at(-1)?.attempt !== attempt) {
      note(state, config, { id, attempt, at: ctx.wallTime(), decisions, placed: undefined, expectedTokens: 0 });
    }
    return shortOf;
  }
  if (wishes?.session !== undefined && session !== undefined) {
    state.sessions?.bind(wishes.session, choice, now);
    state.affinity[session]++;
  }
  const { decode, prefill, expectedTokens } = choice;
  state.turn++;
  // A request that is routed again without a Release in between (it cannot, but if it did) must not leak its units.
  release(state, config.gateway, num);
  const placed = prefill === undefined ? { decode } : { prefill, decode };
  const why = { ...(disagg === undefined ? {} : { disagg }), ...(session === undefined ? {} : { session }) };
  const record: RouteRecord = { id, attempt, at: ctx.wallTime(), decisions, placed, expectedTokens, ...why };
  note(state, config, record);
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
  const { voice } = state.replicas;
  voice.waitsNot(num);
  voice.placed({ num, attempt, decode, prefill, units: request.choices, promptTokens, toCompute, hashes });
  for (const key of keysOf(decode, prefill)) state.inhibitions.placed(key, num);
  return choice;
}

function note({ log }: RouterState, { tape }: RouterConfig, record: RouteRecord): void {
  log.add(record);
  tape?.decided(record);
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
  if (state.inhibitions.total === before) return;
  ctx.log.warn('out of routing for a while', { worker: key, reason });
  // Who is silent is each router's to judge, for it may be this one that hears nothing.
  if (Number.isFinite(placedAt)) state.replicas.voice.failed(key, reason, placedAt);
}

/** Another router has put a worker or pair out: what failed there would fail here. Each tries for itself whether it works again. */
function failedElsewhere(
  { workers, inhibitions }: RouterState,
  { from, body }: RouterMessage & { type: 'Replica' },
  ctx: Ctx<RouterMessage>,
): void {
  if (body.failed.length === 0 || parts(from).incarnation === parts(ctx.address).incarnation) return;
  const now = ctx.now();
  for (const { key, reason, placedMs } of body.failed) {
    if (key.split('>').every((each) => workers.has(each))) inhibitions.failed(key, reason, now - placedMs, now);
  }
}

function factsOf(state: RouterState, now: number): RouterFacts {
  const suspects: { incarnation: string; reason: string }[] = [];
  for (const [incarnation, { suspect }] of state.workers) {
    if (suspect !== undefined) suspects.push({ incarnation, reason: suspect });
  }
  const { queue, inhibitions, sessions, affinity } = state;
  return {
    queued: queue.size,
    waiting: [...queue.depths(), { class: 'again', waiting: queue.again }],
    refused: Object.fromEntries(state.refused),
    sessions: { size: sessions?.size ?? 0, ...affinity },
    busy: busyWorkers(state),
    inhibited: inhibitions.list(now),
    suspects,
    inhibitions: inhibitions.total,
    index: state.caches?.stats(),
    hits: { ...state.hits },
    replicas: state.replicas.peers.facts(),
  };
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
  state.replicas.voice.began(num);
  if (cachedTokens === undefined) return;
  placed.record.cachedTokens = cachedTokens;
  config.tape?.began(placed.record);
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
  state.replicas.voice.over(num);
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.decode });
}

function freePrefill(state: RouterState, origin: string, num: number): void {
  const placed = state.placed.get(num);
  if (placed?.prefill === undefined) return;
  state.replicas.voice.handed(num);
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.prefill });
}

/** Repeats are harmless: the ledger frees an entry once. */
function free(state: RouterState, key: EntryKey): void {
  const worker = state.workers.get(key.incarnation);
  if (state.ledger.free(key) && worker !== undefined) worker.full = false;
}
