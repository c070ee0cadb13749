/**
 * The router: picks P and D together for each request, counts its own dispatches at once (load reports come later), and
 * holds what cannot be placed yet in a bounded first-come queue, where it occupies nothing (design 5.3).
 */
import type { InstanceInfo } from '../../transport/index.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { type Candidate, type RoutingMode, select } from './policy.js';

export interface RouterConfig {
  readonly mode: RoutingMode;
  /** Most requests that wait for a worker; one more is refused with QUEUE_FULL. */
  readonly queueLimit: number;
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
  | { readonly type: 'Release'; readonly num: number; readonly attempt: number }
  /** Its prompt is computed: P's unit is free, D's is not. */
  | { readonly type: 'PrefillDone'; readonly num: number; readonly attempt: number }
  /** A worker refused as full although this router saw room: other gateways use it too. */
  | { readonly type: 'Full'; readonly incarnation: string }
  | { readonly type: 'InstanceUp'; readonly info: InstanceInfo }
  | { readonly type: 'InstanceGone'; readonly incarnation: string }
  | { readonly type: 'Load'; readonly incarnation: string; readonly busySlots: number; readonly waiting: number };

interface Worker {
  readonly info: InstanceInfo;
  /** Units held by this router's dispatches. */
  used: number;
  /** Busy and waiting, as the worker last said. */
  reported: number;
  /** Cleared by the next load report or release. */
  full: boolean;
}

interface Placed {
  readonly attempt: number;
  readonly decode: string;
  readonly units: number;
  prefill: string | undefined;
}

interface Waiting {
  readonly request: RouteRequest;
  readonly replyTo: Ref<RouterReply>;
}

export interface RouterState {
  readonly workers: Map<string, Worker>;
  readonly placed: Map<number, Placed>;
  queue: Waiting[];
  turn: number;
}

export function routerActor(config: RouterConfig): Behaviour<RouterMessage, RouterState> {
  return {
    name: 'router',
    capacity: 100_000,
    start: () => ({ workers: new Map(), placed: new Map(), queue: [], turn: 0 }),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Route':
          route(state, message, config, ctx);
          return state;
        case 'Release':
          state.queue = state.queue.filter(
            ({ request }) => request.num !== message.num || request.attempt !== message.attempt,
          );
          if (state.placed.get(message.num)?.attempt === message.attempt) release(state, message.num);
          break;
        case 'PrefillDone':
          if (state.placed.get(message.num)?.attempt === message.attempt) releasePrefill(state, message.num);
          break;
        case 'Full': {
          const worker = state.workers.get(message.incarnation);
          if (worker) worker.full = true;
          return state;
        }
        case 'InstanceUp': {
          const { incarnation } = message.info;
          const known = state.workers.get(incarnation);
          state.workers.set(incarnation, {
            // One that comes back may still hold what it held before it was out of view.
            used: known === undefined ? unitsOn(state, incarnation) : known.used,
            reported: 0,
            full: false,
            ...known,
            info: message.info,
          });
          break;
        }
        case 'InstanceGone':
          state.workers.delete(message.incarnation);
          break;
        case 'Load': {
          const worker = state.workers.get(message.incarnation);
          if (!worker) return state;
          worker.reported = message.busySlots + message.waiting;
          worker.full = false;
          break;
        }
      }
      drain(state, config, ctx);
      return state;
    },
  };
}

function route(state: RouterState, { request, replyTo }: Waiting, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  const { num, attempt } = request;
  const placement =
    state.queue.length === 0 && !tooMany(state, request) ? place(state, request, config, ctx) : undefined;
  if (placement) ctx.tell(replyTo, { type: 'Routed', num, attempt, ...placement });
  else if (state.queue.length >= config.queueLimit) refuse({ request, replyTo }, 'QUEUE_FULL', ctx);
  else {
    state.queue.push({ request, replyTo });
    ctx.tell(replyTo, { type: 'Queued', num, attempt });
    // Those in front may wait for workers that this one does not need.
    drain(state, config, ctx);
  }
}

function refuse({ request, replyTo }: Waiting, code: 'QUEUE_FULL' | 'TOO_MANY_CHOICES', ctx: Ctx<RouterMessage>): void {
  ctx.tell(replyTo, { type: 'Unroutable', num: request.num, attempt: request.attempt, code });
}

/** Places whatever fits, in order of arrival; one that fits nowhere does not block those behind it. */
function drain(state: RouterState, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  if (state.queue.length === 0) return;
  const still: Waiting[] = [];
  for (const waiting of state.queue) {
    if (tooMany(state, waiting.request)) {
      refuse(waiting, 'TOO_MANY_CHOICES', ctx);
      continue;
    }
    const placement = place(state, waiting.request, config, ctx);
    if (!placement) still.push(waiting);
    else
      ctx.tell(waiting.replyTo, {
        type: 'Routed',
        num: waiting.request.num,
        attempt: waiting.request.attempt,
        ...placement,
      });
  }
  state.queue = still;
}

/** Takes the units and says where, or takes nothing. D first, then P: one order of acquisition. */
function place(state: RouterState, request: RouteRequest, config: RouterConfig, ctx: Ctx<RouterMessage>) {
  const turn = state.turn;
  const decodes = eligible(state, 'decode', request, request.choices);
  const decode = select(config.mode, decodes, turn, ctx.random());
  if (!decode) return undefined;
  // Only prefill workers whose KV this decode worker can read.
  const fingerprint = state.workers.get(decode.incarnation)?.info.fingerprint;
  const prefillExists = [...state.workers.values()].some(
    ({ info }) =>
      info.component === 'prefill' &&
      info.model === request.model &&
      info.fingerprint === fingerprint &&
      !info.draining &&
      // Those that failed this request are no reason to wait: D can do without.
      !request.exclude.has(info.incarnation),
  );
  let prefill: Candidate | undefined;
  if (prefillExists) {
    const prefills = eligible(state, 'prefill', request, 1).filter(
      ({ incarnation }) => state.workers.get(incarnation)?.info.fingerprint === fingerprint,
    );
    prefill = select(config.mode, prefills, turn, ctx.random());
    if (!prefill) return undefined;
  }
  state.turn++;
  // A request that is routed again without a Release in between (it cannot, but if it did) must not leak its units.
  release(state, request.num);
  const placed: Placed = {
    attempt: request.attempt,
    decode: decode.incarnation,
    units: request.choices,
    prefill: prefill?.incarnation,
  };
  state.placed.set(request.num, placed);
  add(state, placed.decode, placed.units);
  if (placed.prefill !== undefined) add(state, placed.prefill, 1);
  return { prefill: placed.prefill, decode: placed.decode };
}

function eligible(
  state: RouterState,
  component: 'prefill' | 'decode',
  request: RouteRequest,
  units: number,
): Candidate[] {
  const found: Candidate[] = [];
  for (const [incarnation, worker] of state.workers) {
    const { info } = worker;
    if (info.component !== component || info.draining || info.model !== request.model) continue;
    if (worker.full || request.exclude.has(incarnation)) continue;
    // One grant more than P has slots: the next prompt is at hand when a slot gets free (design 5.3).
    const capacity = (info.slots ?? 1) + (component === 'prefill' ? 1 : 0);
    if (worker.used + units > capacity) continue;
    found.push({ incarnation, load: Math.max(worker.used, worker.reported), capacity });
  }
  return found;
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
