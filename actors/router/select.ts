/**
 * Which worker takes a request, and why. Pure: whatever chance or history decides comes in as a number, so that a recorded decision can
 * be made again and must come out the same (promise P5).
 */
import {
  type CostConfig,
  type CostTerms,
  costsOf,
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
  readonly barred?: Exclusion | undefined;
}

/** What a request asks of its worker. */
export interface Wishes extends Job {
  /** Only this worker, for either phase or for one of them; the phase's own pin counts first. */
  readonly pin?:
    | {
        readonly worker?: string | undefined;
        readonly prefill?: string | undefined;
        readonly decode?: string | undefined;
        readonly rank?: number | undefined;
      }
    | undefined;
  readonly allowed?: ReadonlySet<string> | undefined;
  readonly requiredTaints?: readonly string[] | undefined;
}

/** What is drawn once per decision. */
export interface Chance {
  /** Counts the decisions of one set of workers. */
  readonly turn: number;
  /** [0, 1). */
  readonly draw: number;
}

/** A worker that was compared. */
export interface Considered extends SelectionCandidate {
  /** What follows from the rest in mode kv; other modes do not look at it. Worked out when somebody asks: see `explained`. */
  readonly terms?: CostTerms;
  readonly probability?: number;
}

/** A decision with everything it rests on, as it goes on the tape. */
export interface Decision {
  readonly mode: SelectionMode;
  readonly phase: Job['phase'];
  readonly promptTokens: number;
  readonly blockTokens: number;
  readonly preferredTaints?: Job['preferredTaints'];
  readonly cost: CostConfig;
  readonly chance: Chance;
  readonly candidates: readonly Considered[];
  readonly excluded: readonly { readonly incarnation: string; readonly rank: number; readonly reason: Exclusion }[];
  /** Index into `candidates`; undefined: nobody can take it. */
  readonly chosen: number | undefined;
}

type Picker = (candidates: readonly SelectionCandidate[], chance: Chance, job: Job, cost: CostConfig) => number;

const share = ({ load, capacity }: SelectionCandidate) => load.requests / capacity;
const at = (draw: number, count: number) => Math.min(count - 1, Math.floor(draw * count));

/** The index chosen among at least one candidate. */
const picks: Readonly<Record<SelectionMode, Picker>> = {
  kv(candidates, { draw }, job, cost) {
    const chances = chancesOf(candidates, job, cost);
    let sum = 0;
    let last = 0;
    for (let index = 0; index < chances.length; index++) {
      const probability = chances[index] as number;
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
    return share(candidates[second] as SelectionCandidate) < share(candidates[first] as SelectionCandidate)
      ? second
      : first;
  },
  'least-loaded'(candidates, { draw }) {
    const least = Math.min(...candidates.map(share));
    const tied = [...candidates.keys()].filter((index) => share(candidates[index] as SelectionCandidate) === least);
    return tied[at(draw, tied.length)] as number;
  },
  direct: () => 0,
};

/** Hard filters first, then one comparison. Mode direct takes pinned requests only. */
export function decide(
  mode: SelectionMode,
  wishes: Wishes,
  workers: readonly SelectionCandidate[],
  cost: CostConfig,
  chance: Chance,
): Decision {
  const excluded: { incarnation: string; rank: number; reason: Exclusion }[] = [];
  const candidates: SelectionCandidate[] = [];
  for (const worker of workers) {
    const reason = unwanted(mode, wishes, worker) ?? worker.barred;
    if (reason === undefined) candidates.push(worker);
    else excluded.push({ incarnation: worker.incarnation, rank: worker.rank, reason });
  }
  const { phase, promptTokens, blockTokens, preferredTaints } = wishes;
  return {
    mode,
    phase,
    promptTokens,
    blockTokens,
    preferredTaints,
    cost,
    chance,
    candidates,
    excluded,
    chosen: candidates.length === 0 ? undefined : picks[mode](candidates, chance, wishes, cost),
  };
}

/** Why a worker is not what the request asks for, however idle it is. */
export function unwanted(
  mode: SelectionMode,
  { phase, pin, allowed, requiredTaints }: Wishes,
  { incarnation, rank, taints }: Pick<SelectionCandidate, 'incarnation' | 'rank' | 'taints'>,
): Exclusion | undefined {
  const pinned = pin?.[phase] ?? pin?.worker;
  if (pinned === undefined ? mode === 'direct' : incarnation !== pinned) return 'not-pinned';
  if (pin?.rank !== undefined && rank !== pin.rank) return 'not-pinned';
  if (allowed !== undefined && !allowed.has(incarnation)) return 'not-allowed';
  return requiredTaints?.every((taint) => taints.includes(taint)) === false ? 'missing-taint' : undefined;
}

/** The same decision with the cost of each candidate and how likely it was. */
export function explained(decision: Decision): Decision {
  if (decision.mode !== 'kv') return decision;
  const { candidates, cost } = decision;
  const terms = costsOf(decision, candidates, cost);
  const chances = chancesOf(candidates, decision, cost);
  return {
    ...decision,
    candidates: candidates.map((each, index) => ({
      ...each,
      terms: terms[index] as CostTerms,
      probability: chances[index] as number,
    })),
  };
}

const chancesOf = (candidates: readonly SelectionCandidate[], job: Job, cost: CostConfig): number[] =>
  probabilities(
    costsOf(job, candidates, cost).map((terms) => terms.cost),
    cost.routerTemperature,
  );
