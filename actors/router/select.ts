/**
 * Which worker takes a request, and why. Pure: whatever chance or history decides comes in as a number, so that a recorded decision can
 * be made again and must come out the same (promise P5).
 */
import {
  type CostConfig,
  type CostTerms,
  costOf,
  type Job,
  probabilities,
  type TierOverlap,
  type WorkerLoad,
} from './cost.js';

export const selectionModes = ['kv', 'round-robin', 'random', 'power-of-two', 'least-loaded', 'direct'] as const;
export type SelectionMode = (typeof selectionModes)[number];

/** Why a worker is not compared. The first group is the caller's to say, the second follows from the request. */
export type Exclusion =
  | 'draining'
  /** It says nothing, or its engine stands still. */
  | 'suspect'
  | 'inhibited'
  | 'tried'
  | 'full'
  /** No prefill worker that it can take KV from has room. */
  | 'no-prefill'
  | 'busy'
  | 'wrong-model'
  | 'wrong-fingerprint'
  | 'not-allowed'
  | 'not-pinned'
  | 'missing-taint';

/** One rank of one worker, with what the decision may rest on. */
export interface SelectionCandidate {
  readonly incarnation: string;
  readonly rank: number;
  readonly overlap: TierOverlap;
  readonly load: WorkerLoad;
  /** Requests it can run at a time; load is compared as a share of it. */
  readonly capacity: number;
  readonly taints: readonly string[];
  readonly barred?: Exclusion;
}

/** What a request asks of its worker. */
export interface Wishes extends Job {
  /** Only this worker, for either phase or for one of them; the phase's own pin counts first. */
  readonly pin?: {
    readonly worker?: string;
    readonly prefill?: string;
    readonly decode?: string;
    readonly rank?: number;
  };
  readonly allowed?: ReadonlySet<string>;
  readonly requiredTaints?: readonly string[];
}

/** What is drawn once per decision. */
export interface Chance {
  /** Counts the decisions of one set of workers. */
  readonly turn: number;
  /** [0, 1). */
  readonly draw: number;
}

export interface Considered {
  readonly incarnation: string;
  readonly rank: number;
  readonly overlap: TierOverlap;
  readonly load: WorkerLoad;
  readonly capacity: number;
  /** Only in mode kv: other modes do not look at it. */
  readonly terms?: CostTerms;
  readonly probability?: number;
}

/** A decision with everything it rests on, as it goes on the tape. */
export interface Decision {
  readonly mode: SelectionMode;
  readonly phase: Job['phase'];
  readonly promptTokens: number;
  readonly blockTokens: number;
  readonly chance: Chance;
  readonly candidates: readonly Considered[];
  readonly excluded: readonly { readonly incarnation: string; readonly rank: number; readonly reason: Exclusion }[];
  /** Index into `candidates`; undefined: nobody can take it. */
  readonly chosen: number | undefined;
}

type Pick = (candidates: readonly Considered[], chance: Chance) => number;

const share = ({ load, capacity }: Considered) => load.requests / capacity;
const at = (draw: number, count: number) => Math.min(count - 1, Math.floor(draw * count));

/** The index chosen among at least one candidate. */
const picks: Readonly<Record<SelectionMode, Pick>> = {
  kv(candidates, { draw }) {
    let sum = 0;
    let last = 0;
    for (let index = 0; index < candidates.length; index++) {
      const { probability = 0 } = candidates[index] as Considered;
      if (probability === 0) continue;
      sum += probability;
      last = index;
      if (draw < sum) return index;
    }
    // Rounding: the sum fell short of the draw.
    return last;
  },
  'round-robin': (candidates, { turn }) => turn % candidates.length,
  random: (candidates, { draw }) => at(draw, candidates.length),
  'power-of-two'(candidates, { draw }) {
    const others = candidates.length - 1;
    if (others === 0) return 0;
    // One draw names an ordered pair of two different ones; of equals the first is taken.
    const pair = at(draw, candidates.length * others);
    const first = Math.floor(pair / others);
    const second = (first + 1 + (pair % others)) % candidates.length;
    return share(candidates[second] as Considered) < share(candidates[first] as Considered) ? second : first;
  },
  'least-loaded'(candidates, { draw }) {
    const least = Math.min(...candidates.map(share));
    const tied = [...candidates.keys()].filter((index) => share(candidates[index] as Considered) === least);
    return tied[at(draw, tied.length)] as number;
  },
  direct: () => 0,
};

/** Hard filters first, then one comparison. Mode direct takes pinned requests only. */
export function decide(
  mode: SelectionMode,
  wishes: Wishes,
  workers: readonly SelectionCandidate[],
  config: CostConfig,
  chance: Chance,
): Decision {
  const pinned = wishes.pin?.[wishes.phase] ?? wishes.pin?.worker;
  const excluded: { incarnation: string; rank: number; reason: Exclusion }[] = [];
  const eligible: SelectionCandidate[] = [];
  for (const worker of workers) {
    const reason = exclusion(worker, wishes, pinned, mode);
    if (reason === undefined) eligible.push(worker);
    else excluded.push({ incarnation: worker.incarnation, rank: worker.rank, reason });
  }
  const candidates = mode === 'kv' ? compared(wishes, eligible, config) : eligible.map((worker) => considered(worker));
  return {
    mode,
    phase: wishes.phase,
    promptTokens: wishes.promptTokens,
    blockTokens: wishes.blockTokens,
    chance,
    candidates,
    excluded,
    chosen: candidates.length === 0 ? undefined : picks[mode](candidates, chance),
  };
}

function exclusion(
  worker: SelectionCandidate,
  wishes: Wishes,
  pinned: string | undefined,
  mode: SelectionMode,
): Exclusion | undefined {
  if (pinned === undefined ? mode === 'direct' : worker.incarnation !== pinned) return 'not-pinned';
  if (wishes.pin?.rank !== undefined && worker.rank !== wishes.pin.rank) return 'not-pinned';
  if (wishes.allowed !== undefined && !wishes.allowed.has(worker.incarnation)) return 'not-allowed';
  if (wishes.requiredTaints?.some((taint) => !worker.taints.includes(taint)) === true) return 'missing-taint';
  return worker.barred;
}

function considered({ incarnation, rank, overlap, load, capacity }: SelectionCandidate): Considered {
  return { incarnation, rank, overlap, load, capacity };
}

/** Every loop here runs once per worker and request: plain loops, one object each. */
function compared(job: Job, workers: readonly SelectionCandidate[], config: CostConfig): Considered[] {
  let least = Number.POSITIVE_INFINITY;
  for (const { load } of workers) least = Math.min(least, load.prefillTokens ?? 0);
  const terms: CostTerms[] = [];
  const costs: number[] = [];
  for (const { overlap, load, taints } of workers) {
    const each = costOf(job, overlap, load, taints, least, config);
    terms.push(each);
    costs.push(each.cost);
  }
  const chances = probabilities(costs, config.routerTemperature);
  const candidates: Considered[] = [];
  for (let index = 0; index < workers.length; index++) {
    const { incarnation, rank, overlap, load, capacity } = workers[index] as SelectionCandidate;
    candidates.push({
      incarnation,
      rank,
      overlap,
      load,
      capacity,
      terms: terms[index] as CostTerms,
      probability: chances[index] as number,
    });
  }
  return candidates;
}
