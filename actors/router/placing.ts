/** From a request to its place: what waits, what goes where, and what is booked for it. */
import type { Ctx } from '../kernel/contract.js';
import { pinTo } from './affinity.js';
import { type Choice, choose, type Outcome, type RouteRequest } from './choose.js';
import type { RouterMessage } from './messages.js';
import { keysOf, release } from './outcomes.js';
import { classOf, type EnqueueRefusal, type Pool, type Waiting } from './queue.js';
import { givesWay, tellSoon } from './replica-sync.js';
import type { RouteRecord } from './route-log.js';
import type { Asked, RouterConfig, RouterState } from './state.js';
import { allBusy, capacityOf } from './tuning.js';
import { impossible, laneOf, named, type Unroutable } from './wishes.js';

export function route(state: RouterState, asked: Asked, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  contained(state, asked, config, ctx, () => arrive(state, asked, config, ctx));
}

/** A defect that shows in one request is of that one: it fails, holds nothing, and the others go on. */
function contained<T>(
  state: RouterState,
  { request, replyTo }: Asked,
  config: RouterConfig,
  ctx: Ctx<RouterMessage>,
  work: () => T,
): T | undefined {
  try {
    return work();
  } catch (error) {
    ctx.log.error('a request could not be routed', { req: request.id, error });
    state.queue.remove(request.num);
    release(state, config.gateway, request.num);
    refuse(state, { request, replyTo }, 'INTERNAL', ctx);
    return undefined;
  }
}

function arrive(state: RouterState, { request, replyTo }: Asked, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
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
export function drain(state: RouterState, config: RouterConfig, ctx: Ctx<RouterMessage>): void {
  for (const { item } of state.queue.expire(ctx.now())) refuse(state, item, 'QUEUE_TIMEOUT', ctx);
  if (state.queue.size > 0) {
    state.queue.offer(({ item }) => contained(state, item, config, ctx, () => offer(state, item, config, ctx)));
  }
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
export function viable(state: RouterState, request: RouteRequest, config: RouterConfig): RouteRequest | Unroutable {
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
export function seek(state: RouterState, request: RouteRequest, config: RouterConfig, ctx: Ctx<RouterMessage>): Found {
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
