/**
 * The router: picks P and D together for each request, counts its own dispatches at once (load reports come later), and
 * holds what cannot be placed yet in a bounded first-come queue, where it occupies nothing (design 5.3).
 */
import type { InstanceInfo } from '../../transport/index.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { isFull, meaningOf } from '../refusals.js';
import type { Suspicion } from '../registry/liveness.js';
import { type Inhibited, type InhibitionConfig, Inhibitions, pairKey } from './inhibition.js';
import { Line } from './line.js';
import { type Candidate, type RoutingMode, select } from './policy.js';

export interface RouterConfig {
  readonly mode: RoutingMode;
  /** Most requests that wait for a worker; one more is refused with QUEUE_FULL. */
  readonly queueLimit: number;
  readonly inhibition: InhibitionConfig;
}

export interface RouteRequest {
  readonly num: number;
  readonly attempt: number;
  readonly model: string;
  /** Slots it needs on D: one per choice that still runs. */
  readonly choices: number;
  /** Incarnations that have failed this request. */
  readonly exclude: ReadonlySet<string>;
}

export type RouterReply =
  | {
      readonly type: 'Routed';
      readonly num: number;
      readonly attempt: number;
      readonly prefill: string | undefined;
      readonly decode: string;
    }
  /** It waits; `Routed` or `Unroutable` follows. */
  | { readonly type: 'Queued'; readonly num: number; readonly attempt: number }
  | {
      readonly type: 'Unroutable';
      readonly num: number;
      readonly attempt: number;
      readonly code: 'QUEUE_FULL' | 'TOO_MANY_CHOICES';
    };

export type RouterMessage =
  | { readonly type: 'Route'; readonly request: RouteRequest; readonly replyTo: Ref<RouterReply> }
  /** The attempt is over, or gave up waiting: every unit it holds is free again. Repeats are harmless. */
  | { readonly type: 'Release'; readonly num: number; readonly attempt: number; readonly end?: AttemptEnd }
  /** Its prompt is computed and D decodes: P's unit is free, D's is not, and both have shown that they work. */
  | { readonly type: 'PrefillDone'; readonly num: number; readonly attempt: number }
  | { readonly type: 'InstanceUp'; readonly info: InstanceInfo }
  | {
      readonly type: 'InstanceGone';
      readonly incarnation: string;
      readonly reason: string;
      readonly frontend: Ref<WorkerLoss>;
    }
  | { readonly type: 'Load'; readonly incarnation: string; readonly busySlots: number; readonly waiting: number }
  /** It says nothing, or its engine stands still: nothing goes there until it is `Cleared`, and then a probe first. */
  | {
      readonly type: 'Suspect';
      readonly incarnation: string;
      readonly code: Suspicion;
      readonly frontend: Ref<WorkerLoss>;
    }
  | { readonly type: 'Cleared'; readonly incarnation: string }
  | { readonly type: 'Facts'; readonly replyTo: Ref<RouterFacts> };

/**
 * What the frontend has to hear of a worker. The router passes it on, behind the last request that it placed there: told by another way,
 * that one would be on nobody's account.
 */
export type WorkerLoss =
  | { readonly type: 'WorkerGone'; readonly incarnation: string; readonly reason: string }
  /** It lives, perhaps, but nothing can be expected of it now. */
  | { readonly type: 'WorkerSuspect'; readonly incarnation: string; readonly code: Suspicion };

/** How an attempt ended, as far as it says something of its workers. Absent: it does not. */
export type AttemptEnd = 'served' | { readonly worker: string; readonly code: string };

export interface RouterFacts {
  /** Requests that wait for a worker. */
  readonly queued: number;
  readonly inhibited: readonly Inhibited[];
  /** Workers that say nothing or stand still, with the reason. */
  readonly suspects: readonly { readonly incarnation: string; readonly reason: string }[];
  /** How often a worker or pair was put out of routing. */
  readonly inhibitions: number;
}

interface Worker {
  readonly info: InstanceInfo;
  /** Units held by this router's dispatches. */
  used: number;
  /** Busy and waiting, as the worker last said. */
  reported: number;
  /** It refused although this router saw room, for other gateways use it too; until it reports room, or something of ours ends there. */
  full: boolean;
  /** Why it can be expected to answer nothing. */
  suspect: string | undefined;
}

interface Placed {
  readonly attempt: number;
  readonly decode: string;
  readonly units: number;
  readonly at: number;
  /** Holds P's unit. */
  prefill: string | undefined;
  /** Who was to compute the prompt, also after its unit is free. */
  readonly computedBy: string | undefined;
}

interface Waiting {
  readonly request: RouteRequest;
  readonly replyTo: Ref<RouterReply>;
}

export interface RouterState {
  readonly workers: Map<string, Worker>;
  readonly placed: Map<number, Placed>;
  readonly line: Line<Waiting>;
  readonly inhibitions: Inhibitions;
  turn: number;
}

export function routerActor(config: RouterConfig): Behaviour<RouterMessage, RouterState> {
  return {
    name: 'router',
    capacity: 100_000,
    start: () => ({
      workers: new Map(),
      placed: new Map(),
      line: new Line(),
      inhibitions: new Inhibitions(config.inhibition),
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
          release(state, message.num);
          markFull(state, message.end);
          break;
        case 'PrefillDone':
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, 'served', ctx);
          releasePrefill(state, message.num);
          break;
        case 'InstanceUp': {
          const { incarnation } = message.info;
          const known = state.workers.get(incarnation);
          state.workers.set(incarnation, {
            // One that comes back may still hold what it held before it was out of view.
            used: known === undefined ? unitsOn(state, incarnation) : known.used,
            reported: 0,
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
          ctx.tell(frontend, { type: 'WorkerGone', incarnation, reason });
          break;
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
  if (state.line.has(num)) ctx.tell(waiting.replyTo, { type: 'Queued', num, attempt });
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

interface Choice {
  readonly decode: string;
  readonly prefill: string | undefined;
}

/** Takes the units and says where, or takes nothing. */
function place(
  state: RouterState,
  request: RouteRequest,
  config: RouterConfig,
  ctx: Ctx<RouterMessage>,
): Choice | undefined {
  const choice = choose(state, request, config, ctx);
  if (choice === undefined) return undefined;
  const { decode, prefill } = choice;
  const { num, attempt } = request;
  state.turn++;
  // A request that is routed again without a Release in between (it cannot, but if it did) must not leak its units.
  release(state, num);
  state.placed.set(num, { attempt, decode, units: request.choices, at: ctx.now(), prefill, computedBy: prefill });
  add(state, decode, request.choices);
  if (prefill !== undefined) add(state, prefill, 1);
  for (const key of keysOf(decode, prefill)) state.inhibitions.placed(key, num);
  return choice;
}

/** D first, then P: one order of acquisition. A D whose P is only the least bad one is the last resort. */
function choose(
  state: RouterState,
  request: RouteRequest,
  config: RouterConfig,
  ctx: Ctx<RouterMessage>,
): Choice | undefined {
  const now = ctx.now();
  let decodes = eligible(state, 'decode', request, request.choices, undefined, now).candidates;
  let resort: Choice | undefined;
  while (decodes.length > 0) {
    const decode = (select(config.mode, decodes, state.turn, ctx.random()) as Candidate).incarnation;
    // Only prefill workers whose KV this decode worker can read.
    const prefills = eligible(state, 'prefill', request, 1, decode, now);
    // Those that failed this request are no reason to wait: D can do without.
    if (!prefills.exist) return { decode, prefill: undefined };
    const prefill = select(config.mode, prefills.candidates, state.turn, ctx.random())?.incarnation;
    if (prefill !== undefined && !prefills.leastBad) return { decode, prefill };
    if (prefill !== undefined) resort ??= { decode, prefill };
    const fingerprint = fingerprintOf(state, decode);
    // Where no P has room, no D of the same KV has to ask again.
    decodes = decodes.filter(({ incarnation }) =>
      prefills.room ? incarnation !== decode : fingerprintOf(state, incarnation) !== fingerprint,
    );
  }
  return resort;
}

interface Eligible {
  readonly candidates: Candidate[];
  /** Some serve this model and can be expected to answer, free or not. */
  readonly exist: boolean;
  /** One of them, inhibited or not, could take it. */
  readonly room: boolean;
  /** All of them are inhibited, and the candidate is the one that is back first. */
  readonly leastBad: boolean;
}

const fingerprintOf = (state: RouterState, incarnation: string) => state.workers.get(incarnation)?.info.fingerprint;

/** `decode`: the other half of the pair, when a prefill worker is wanted. */
function eligible(
  state: RouterState,
  component: 'prefill' | 'decode',
  request: RouteRequest,
  units: number,
  decode: string | undefined,
  now: number,
): Eligible {
  const { inhibitions } = state;
  const fingerprint = decode === undefined ? undefined : fingerprintOf(state, decode);
  const candidates: Candidate[] = [];
  let exist = false;
  let healthy = false;
  let leastBad: Candidate | undefined;
  let soonest = Number.POSITIVE_INFINITY;
  for (const [incarnation, worker] of state.workers) {
    const { info } = worker;
    if (info.component !== component || info.draining || info.model !== request.model) continue;
    if (request.exclude.has(incarnation)) continue;
    if (decode !== undefined && info.fingerprint !== fingerprint) continue;
    // It answers nothing: no reason to wait either, for D can do without P.
    if (worker.suspect !== undefined) continue;
    exist = true;
    const pair = decode === undefined || inhibitions.size === 0 ? undefined : pairKey(incarnation, decode);
    const out =
      inhibitions.standing(incarnation, now) === 'out' ||
      (pair !== undefined && inhibitions.standing(pair, now) === 'out');
    if (!out) healthy = true;
    // One grant more than P has slots: the next prompt is at hand when a slot gets free (design 5.3).
    const capacity = (info.slots ?? 1) + (component === 'prefill' ? 1 : 0);
    if (worker.full || worker.used + units > capacity) continue;
    const candidate = { incarnation, load: Math.max(worker.used, worker.reported), capacity };
    if (!out) {
      candidates.push(candidate);
      continue;
    }
    const until = Math.max(inhibitions.until(incarnation), pair === undefined ? 0 : inhibitions.until(pair));
    if (until >= soonest) continue;
    soonest = until;
    leastBad = candidate;
  }
  // One that is merely full is worth waiting for.
  const room = candidates.length > 0 || leastBad !== undefined;
  if (healthy || leastBad === undefined) return { candidates, exist, room, leastBad: false };
  return { candidates: [leastBad], exist, room, leastBad: true };
}

const keysOf = (decode: string, prefill: string | undefined): readonly string[] =>
  prefill === undefined ? [decode] : [decode, prefill, pairKey(prefill, decode)];

/** What the end of an attempt says of the workers it was placed on. */
function learn(state: RouterState, num: number, end: AttemptEnd | undefined, ctx: Ctx<RouterMessage>): void {
  const placed = state.placed.get(num);
  if (placed === undefined) return;
  const { decode, computedBy } = placed;
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
  return { queued: line.size, inhibited: inhibitions.list(now), suspects, inhibitions: inhibitions.total };
}

/** No worker that serves this model could ever hold so many choices at once. */
function tooMany(state: RouterState, request: RouteRequest): boolean {
  let most = 0;
  for (const { info } of state.workers.values()) {
    if (info.component === 'decode' && info.model === request.model) most = Math.max(most, info.slots ?? 1);
  }
  return most > 0 && request.choices > most;
}

function add(state: RouterState, incarnation: string, units: number): void {
  const worker = state.workers.get(incarnation);
  if (worker) worker.used += units;
}

function unitsOn({ placed }: RouterState, incarnation: string): number {
  let units = 0;
  for (const { prefill, decode, units: slots } of placed.values()) {
    if (decode === incarnation) units += slots;
    if (prefill === incarnation) units += 1;
  }
  return units;
}

function release(state: RouterState, num: number): void {
  const placed = state.placed.get(num);
  if (!placed) return;
  releasePrefill(state, num);
  state.placed.delete(num);
  free(state, placed.decode, placed.units);
}

function releasePrefill(state: RouterState, num: number): void {
  const placed = state.placed.get(num);
  if (placed?.prefill === undefined) return;
  free(state, placed.prefill, 1);
  placed.prefill = undefined;
}

function free(state: RouterState, incarnation: string, units: number): void {
  const worker = state.workers.get(incarnation);
  if (!worker) return;
  worker.used -= units;
  worker.full = false;
}
