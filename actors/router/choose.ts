/**
 * Which pair of workers takes a request: D by its load, P by what its cache has of the prompt and by its backlog; where D computes the
 * prompt itself, D by both. Everything a router knows goes in, decisions come out; nothing is booked here.
 */
import type { InstanceInfo } from '../../transport/index.js';
import { type Caches, noOverlap } from './caches.js';
import type { CostConfig, CostOverride, TierOverlap, WorkerLoad } from './cost.js';
import { type DisaggChoice, type DisaggRouting, disaggRouting, disaggregate, prefillBusy } from './disagg.js';
import { type Inhibitions, pairKey } from './inhibition.js';
import type { ActiveLoad, Ledger } from './ledger.js';
import type { Pool } from './queue.js';
import {
  type Decision,
  decide,
  type Exclusion,
  type SelectionCandidate,
  type SelectionMode,
  unwanted,
  type Wishes,
} from './select.js';
import { capacityOf, isBusy, type RouterTuning } from './tuning.js';

/** What a request asks of its workers beyond its prompt; absent: no wish. */
export interface RouteWishes extends Pick<Wishes, 'pin' | 'allowed' | 'requiredTaints' | 'preferredTaints'> {
  /** What belongs together: served where it was before, if that can be. */
  readonly session?: string;
  /** Policy class it asks for. */
  readonly class?: string;
  /** Higher is sooner: seconds of waiting among its like (`priority`), or before all others (`strictPriority`). */
  readonly priority?: number;
  readonly strictPriority?: number;
  /** For this request alone. */
  readonly mode?: SelectionMode;
  readonly cost?: CostOverride;
}

export interface RouteRequest {
  readonly num: number;
  readonly attempt: number;
  /** Request id, to find its decisions by. */
  readonly id: string;
  readonly model: string;
  /** Slots it needs on D: one per choice that still runs. */
  readonly choices: number;
  /** Its client has text already, and sees the stream stand. */
  readonly begun?: boolean;
  /** Incarnations that have failed this request. */
  readonly exclude: ReadonlySet<string>;
  readonly promptTokens: number;
  /** Sequence hashes of the prompt's whole blocks; empty where caches do not matter. */
  readonly hashes: BigUint64Array;
  /** By the router's clock: from then on it is not placed any more, but refused. */
  readonly queueBy: number;
  readonly wishes?: RouteWishes;
}

/** A worker as the router sees it, beside what it has given it itself. */
export interface Worker {
  readonly info: InstanceInfo;
  /** Busy and waiting, as the worker last said. */
  reported: number;
  /** KV blocks in use, as it last said. */
  reportedBlocks: number;
  /** Cleared by the next load report or release. */
  full: boolean;
  /** Why it can be expected to answer nothing. */
  suspect: string | undefined;
}

export interface ChooseConfig {
  readonly mode: SelectionMode;
  readonly blockTokens: number;
  /** Of a worker that computes the prompt. */
  readonly cost: CostConfig;
  /** Which prompts are worth a prefill worker; absent: all. */
  readonly disagg?: DisaggRouting;
}

export interface Fleet {
  readonly workers: ReadonlyMap<string, Worker>;
  readonly ledger: Ledger;
  readonly inhibitions: Inhibitions;
  /** Undefined: caches do not matter. */
  readonly caches: Caches | undefined;
  /** Other routers. Complete: the ledger has their dispatches too, and nothing that a worker reports is anybody else's. */
  readonly peers?: { readonly complete: boolean };
  /** Until when a worker has room, and for whom it is worth waiting. */
  readonly tuning: RouterTuning;
}

export interface Choice {
  readonly decode: string;
  readonly prefill: string | undefined;
  /** Prompt tokens that whoever computes the prompt should have in its cache. */
  readonly expectedTokens: number;
}

export interface Outcome {
  readonly choice: Choice | undefined;
  /** Which workers have no room for it; undefined: there is a choice. */
  readonly shortOf?: Pool | undefined;
  readonly decisions: readonly Decision[];
  /** Where the prompt is to be computed, and why; absent where there is no choice. */
  readonly disagg?: DisaggChoice;
}

const always = disaggRouting();

/** What one call looks at again and again. */
interface Look {
  readonly fleet: Fleet;
  readonly request: RouteRequest;
  readonly config: ChooseConfig;
  readonly now: number;
  readonly overlaps: ReadonlyMap<string, TierOverlap>;
  readonly mode: SelectionMode;
  /** What it asks of either half of the pair. */
  readonly asks: Readonly<Record<'prefill' | 'decode', Wishes>>;
}

interface Eligible {
  readonly workers: SelectionCandidate[];
  /** Some serve this model, are what the request asks for and can be expected to answer, free or not. */
  readonly exist: boolean;
  /** All of them are inhibited, and the one that is back first may be taken all the same. */
  readonly leastBad: boolean;
  /** One of them, inhibited or not, could take it. */
  readonly room: boolean;
}

/**
 * D first, then P: one order of acquisition. A D whose P is only the least bad one is the last resort. `turn` counts decisions, `draw` gives
 * a number in [0, 1) for each.
 */
export function choose(
  fleet: Fleet,
  request: RouteRequest,
  config: ChooseConfig,
  now: number,
  turn: number,
  draw: () => number,
): Outcome {
  const { caches } = fleet;
  const { wishes } = request;
  const overlaps = caches === undefined ? new Map() : caches.overlaps(request.hashes, now);
  const mode = wishes?.mode ?? config.mode;
  const cost = wishes?.cost === undefined ? config.cost : { ...config.cost, ...wishes.cost };
  const prefillAsks = asks(request, config, 'prefill');
  const remote = prefillsExist(fleet, request, mode, prefillAsks);
  // Without P it is D that computes the prompt.
  const decodeAsks = { ...asks(request, config, 'decode'), phase: remote ? 'decode' : 'prefill' } as const;
  const look: Look = {
    fleet,
    request,
    config,
    now,
    overlaps,
    mode,
    asks: { prefill: prefillAsks, decode: decodeAsks },
  };
  const decisions: Decision[] = [];
  const make = (leg: 'prefill' | 'decode', workers: readonly SelectionCandidate[], by: CostConfig) => {
    const decision = decide(mode, look.asks[leg], workers, by, { turn, draw: draw() });
    decisions.push(decision);
    return decision.chosen === undefined ? undefined : decision.candidates[decision.chosen]?.incarnation;
  };
  const done = (decode: string, prefill: string | undefined, disagg?: DisaggChoice): Outcome => ({
    choice: { decode, prefill, expectedTokens: expected(look, prefill ?? decode) },
    decisions,
    ...(disagg !== undefined && { disagg }),
  });

  const { flow, policy } = config.disagg ?? always;
  // Who computes the prompt is chosen by its cache; who only decodes, by what runs there, and by its cache if it may compute it after all.
  const credit = flow === 'prefill-first' && policy === 'always' ? { overlapScoreCredit: 0 } : {};
  const decodeCost = remote ? { ...cost, ...credit, trackPrefillTokens: false } : cost;
  let decodes: readonly SelectionCandidate[] = eligible(look, 'decode', request.choices, undefined).workers;
  let resort: Outcome | undefined;
  for (;;) {
    const decode = make('decode', decodes, decodeCost);
    if (decode === undefined)
      return resort ?? { choice: undefined, decisions, shortOf: decisions.length > 1 ? 'prefill' : 'decode' };
    if (remote && flow === 'decode-first') {
      const uncachedTokens = request.promptTokens - cachedTokens(look, decode);
      return done(decode, undefined, { remote: false, uncachedTokens, reason: 'decode-first' });
    }
    const prefills = eligible(look, 'prefill', 1, decode);
    const pinned = wishes?.pin?.prefill !== undefined;
    // Those that failed this request are no reason to wait: D can do without.
    if (!prefills.exist && !pinned) return done(decode, undefined);
    const prefill = make('prefill', prefills.workers, cost);
    const disagg = whereToCompute(look, decode, prefill);
    if (!disagg.remote && !pinned) return done(decode, undefined, disagg);
    if (prefill !== undefined && !prefills.leastBad) return done(decode, prefill, disagg);
    if (prefill !== undefined) resort ??= done(decode, prefill, disagg);
    const fingerprint = fleet.workers.get(decode)?.info.fingerprint;
    // Where no P has room, no D of the same KV has to ask again.
    decodes = decodes.map((each) => {
      const hopeless = prefills.room
        ? each.incarnation === decode
        : fleet.workers.get(each.incarnation)?.info.fingerprint === fingerprint;
      return hopeless && each.barred === undefined ? { ...each, barred: 'no-prefill' } : each;
    });
  }
}

/** What a request asks of one half of the pair. */
function asks(request: RouteRequest, { blockTokens }: ChooseConfig, phase: 'prefill' | 'decode'): Wishes {
  const { promptTokens, wishes } = request;
  if (wishes === undefined) return { phase, promptTokens, blockTokens };
  const { pin, allowed, requiredTaints, preferredTaints } = wishes;
  return {
    phase,
    promptTokens,
    blockTokens,
    pin: pin && { worker: pin[phase] ?? pin.worker, rank: pin.rank },
    allowed,
    requiredTaints,
    preferredTaints,
  };
}

function prefillsExist({ workers }: Fleet, request: RouteRequest, mode: SelectionMode, wishes: Wishes): boolean {
  for (const worker of workers.values()) {
    if (worker.info.component !== 'prefill') continue;
    if (never(worker, request, worker.info.fingerprint) === undefined && isWanted({ request, mode }, wishes, worker))
      return true;
  }
  return false;
}

const untainted: readonly string[] = [];

/** Asked for every worker: most requests have no wishes. */
const isWanted = ({ request, mode }: Pick<Look, 'request' | 'mode'>, wishes: Wishes, { info }: Worker): boolean =>
  (request.wishes === undefined && mode !== 'direct') ||
  unwanted(mode, wishes, { incarnation: info.incarnation, rank: 0, taints: info.taints ?? untainted }) === undefined;

/** `decode`: the other half of the pair, when a prefill worker is wanted for it. */
function eligible(look: Look, component: 'prefill' | 'decode', units: number, decode: string | undefined): Eligible {
  const { fleet, request, now } = look;
  const { workers, ledger, inhibitions } = fleet;
  const fingerprint = decode === undefined ? undefined : workers.get(decode)?.info.fingerprint;
  const list: SelectionCandidate[] = [];
  let exist = false;
  let healthy = false;
  let room = false;
  let leastBad = -1;
  let soonest = Number.POSITIVE_INFINITY;
  for (const [incarnation, worker] of workers) {
    const { info } = worker;
    if (info.component !== component) continue;
    let barred = never(worker, request, decode === undefined ? info.fingerprint : fingerprint);
    const capacity = capacityOf(info, fleet.tuning);
    const active = ledger.load(incarnation);
    // Whoever is not wanted is no candidate, and says nothing of those that are.
    if (barred === undefined && isWanted(look, look.asks[component], worker)) {
      exist = true;
      const alone = inhibitions.standing(incarnation, now) === 'out';
      const pair = decode === undefined || inhibitions.size === 0 ? undefined : pairKey(incarnation, decode);
      const together = pair !== undefined && inhibitions.standing(pair, now) === 'out';
      if (!alone && !together) healthy = true;
      // A request that has begun is not turned away by a threshold.
      if (worker.full || active.units + units > capacity) barred = 'full';
      else if (request.attempt === 1 && isBusy(info, active, fleet.tuning)) barred = 'busy';
      else room = true;
      if (barred === undefined && (alone || together)) {
        barred = 'inhibited';
        const until = Math.max(inhibitions.until(incarnation), pair === undefined ? 0 : inhibitions.until(pair));
        if (until < soonest) {
          soonest = until;
          leastBad = list.length;
        }
      }
    }
    list.push({
      incarnation,
      rank: 0,
      overlap: look.overlaps.get(incarnation) ?? noOverlap,
      load: loadOf(look, incarnation, worker, active),
      capacity,
      taints: info.taints ?? untainted,
      barred,
    });
  }
  // One that is merely full is worth waiting for.
  if (healthy || leastBad < 0) return { workers: list, exist, room, leastBad: false };
  list[leastBad] = { ...(list[leastBad] as SelectionCandidate), barred: undefined };
  return { workers: list, exist, room, leastBad: true };
}

/** Why it will not do for this request however long it waits. */
function never(
  { info, suspect }: Worker,
  request: RouteRequest,
  fingerprint: string | undefined,
): Exclusion | undefined {
  if (info.model !== request.model) return 'wrong-model';
  if (info.fingerprint !== fingerprint) return 'wrong-fingerprint';
  if (info.draining) return 'draining';
  if (request.exclude.has(info.incarnation)) return 'tried';
  // It answers nothing: no reason to wait for it either, for D can do without P.
  return suspect === undefined ? undefined : 'suspect';
}

/** Dispatches at once; what it reports beyond them is of gateways whose word is missing, and takes its share of the blocks. */
function loadOf({ fleet, request, mode }: Look, incarnation: string, worker: Worker, active: ActiveLoad): WorkerLoad {
  const { units, prefillTokens, blocks } = active;
  const { reported, reportedBlocks } = worker;
  const foreign = fleet.peers?.complete === true ? 0 : Math.max(0, reported - units);
  // A prompt there is no more than what is left of it to compute: its blocks go to D, and would count it twice.
  if (worker.info.component === 'prefill') return { prefillTokens, decodeBlocks: 0, requests: units + foreign };
  return {
    prefillTokens,
    decodeBlocks: blocks + (foreign === 0 ? 0 : (reportedBlocks * foreign) / reported),
    additionalBlocks:
      mode === 'kv' ? fleet.ledger.additionalBlocks(incarnation, request.hashes, request.promptTokens) : 0,
    requests: units + foreign,
  };
}

/** Is the prompt worth a prefill worker? `prefill`: the one that would compute it; undefined: none of them has room. */
function whereToCompute(look: Look, decode: string, prefill: string | undefined): DisaggChoice {
  const { fleet, request, config } = look;
  const disagg = config.disagg ?? always;
  const worker = fleet.workers.get(decode) as Worker;
  const load = loadOf(look, decode, worker, fleet.ledger.load(decode));
  return disaggregate(
    {
      promptTokens: request.promptTokens,
      cachedTokens: cachedTokens(look, decode),
      prefillBusy: prefill === undefined || isPrefillBusy(look, prefill, disagg),
      decodeBlocks: load.decodeBlocks + (load.additionalBlocks ?? 0),
      decodeCapacityBlocks: worker.info.kvBlocks,
    },
    disagg,
  );
}

const isPrefillBusy = ({ fleet }: Look, prefill: string, disagg: DisaggRouting): boolean =>
  prefillBusy(
    fleet.ledger.load(prefill).prefillTokens,
    fleet.workers.get(prefill)?.info.batchTokens,
    disagg.prefillBusy,
  );

const cachedTokens = ({ overlaps, config }: Look, incarnation: string): number =>
  (overlaps.get(incarnation)?.device ?? 0) * config.blockTokens;

/** An engine computes at least the last token: it needs its logits. */
function expected({ overlaps, request, config }: Look, incarnation: string): number {
  const blocks = overlaps.get(incarnation)?.device ?? 0;
  return Math.min(blocks, Math.floor((request.promptTokens - 1) / config.blockTokens)) * config.blockTokens;
}
