/**
 * What a worker would cost a request, in KV blocks: Dynamo's formula with its parameters, names and defaults. Prompt blocks still to
 * be computed there (its own backlog included) less credit for blocks it has, plus the blocks its running requests hold. Pure.
 */

/** Blocks of the prompt that a worker has: leading ones on the device, then those that follow on the host, then on disk. */
export interface TierOverlap {
  readonly device: number;
  readonly host: number;
  readonly disk: number;
  /** After those, in a store beside the workers; counts as disk. */
  readonly external?: number;
  /** In a cache that all workers share, beyond what the device has. */
  readonly shared?: number;
}

export interface WorkerLoad {
  /** Prompt tokens it was given and has not computed; undefined: nothing is known of it. */
  readonly prefillTokens: number | undefined;
  /** KV blocks of its running requests. */
  readonly decodeBlocks: number;
  /** Blocks this request would add, less those it shares with running requests there. */
  readonly additionalBlocks?: number;
  readonly requests: number;
}

export interface CostConfig {
  /** Credit in blocks for a block on the device. 0: the KV cache does not matter. */
  readonly overlapScoreCredit: number;
  /** How fast credit fades as a worker's backlog grows beyond the smallest one; 0: not at all. */
  readonly overlapScoreCreditDecay: number;
  readonly prefillLoadScale: number;
  /** Blocks that a running request counts for, beside its KV. */
  readonly decodeActiveRequestWeight: number;
  readonly hostCacheHitWeight: number;
  readonly diskCacheHitWeight: number;
  readonly sharedCacheMultiplier: number;
  /** 0: the cheapest; above: the softmax of costs scaled to [0, 1]. */
  readonly routerTemperature: number;
  readonly trackPrefillTokens: boolean;
}

export const defaultCost: CostConfig = {
  overlapScoreCredit: 1,
  overlapScoreCreditDecay: 0,
  prefillLoadScale: 1,
  decodeActiveRequestWeight: 0,
  hostCacheHitWeight: 0.75,
  diskCacheHitWeight: 0.25,
  sharedCacheMultiplier: 0,
  routerTemperature: 0,
  trackPrefillTokens: true,
};

/** What one request may set for itself. */
export type CostOverride = Partial<
  Pick<
    CostConfig,
    'overlapScoreCredit' | 'prefillLoadScale' | 'routerTemperature' | 'trackPrefillTokens' | 'sharedCacheMultiplier'
  >
>;

/** Defaults, then `given`. Throws RangeError, which names the parameter, unless every number is finite and not negative. */
export function costConfig(given: Partial<CostConfig> = {}, base: CostConfig = defaultCost): CostConfig {
  const config = { ...base };
  for (const key of Object.keys(base) as (keyof CostConfig)[]) {
    const value = given[key];
    if (value === undefined) continue;
    if (
      typeof value !== typeof base[key] ||
      (typeof value === 'number' && !(value >= 0 && value < Number.POSITIVE_INFINITY))
    ) {
      throw new RangeError(
        `${key} is ${String(value)}: ${typeof base[key] === 'number' ? 'a finite number of at least 0' : 'true or false'} is wanted`,
      );
    }
    Object.assign(config, { [key]: value });
  }
  return config;
}

export interface Job {
  readonly blockTokens: number;
  readonly promptTokens: number;
  readonly phase: 'prefill' | 'decode';
  /** Taints it would rather meet (negative: avoid), by weight. */
  readonly preferredTaints?: Readonly<Record<string, number>> | undefined;
}

/** The terms of one worker's cost, in blocks unless said otherwise. */
export interface CostTerms {
  readonly cachedTokens: number;
  readonly prefillBlocks: number;
  readonly credit: number;
  readonly decodeBlocks: number;
  readonly requests: number;
  /** What the sum is multiplied by for its taints: 1 without preferences, from 0.37 to 2.72. */
  readonly taint: number;
  readonly cost: number;
}

/** `leastPrefillTokens`: the smallest backlog among the workers compared; it matters when credit decays. */
export function costOf(
  job: Job,
  overlap: TierOverlap,
  load: WorkerLoad,
  taints: readonly string[],
  leastPrefillTokens: number,
  config: CostConfig,
): CostTerms {
  const { blockTokens, promptTokens } = job;
  const { device, host } = overlap;
  const disk = overlap.disk + (overlap.external ?? 0);
  const farther = config.hostCacheHitWeight * host + config.diskCacheHitWeight * disk;
  const cachedTokens = Math.round((device + farther) * blockTokens);
  const { trackPrefillTokens: tracked, overlapScoreCredit } = config;
  const backlog = load.prefillTokens ?? 0;
  const prompt =
    load.prefillTokens === undefined ? promptTokens : Math.max(0, promptTokens - cachedTokens) + cachedTokens;
  const prefillBlocks = tracked ? (backlog + prompt) / blockTokens : 0;
  const decay =
    tracked && config.overlapScoreCreditDecay > 0
      ? 1 /
        (1 +
          (config.overlapScoreCreditDecay * ((backlog - leastPrefillTokens) / blockTokens)) /
            Math.max(1, Math.ceil(promptTokens / blockTokens)))
      : 1;
  const credit = overlapScoreCredit * decay * device + farther + config.sharedCacheMultiplier * (overlap.shared ?? 0);
  const decodeBlocks = load.decodeBlocks + (load.additionalBlocks ?? 0);
  const requests = config.decodeActiveRequestWeight * load.requests;
  // A decode worker that may compute the prompt itself: its cache saves decode work, for no prefill is counted.
  const sum =
    job.phase === 'decode' && !tracked && overlapScoreCredit > 0
      ? Math.max(0, decodeBlocks - credit) + requests
      : config.prefillLoadScale * Math.max(0, prefillBlocks - credit) + decodeBlocks + requests;
  let preference = 0;
  for (const taint of taints) preference += job.preferredTaints?.[taint] ?? 0;
  const taint = job.preferredTaints === undefined ? 1 : Math.exp(-Math.tanh(preference));
  return { cachedTokens, prefillBlocks, credit, decodeBlocks, requests, taint, cost: sum * taint };
}

/** Of all the workers that are compared. */
export function costsOf(
  job: Job,
  workers: readonly { readonly overlap: TierOverlap; readonly load: WorkerLoad; readonly taints: readonly string[] }[],
  config: CostConfig,
): CostTerms[] {
  let least = Number.POSITIVE_INFINITY;
  for (const { load } of workers) least = Math.min(least, load.prefillTokens ?? 0);
  return workers.map(({ overlap, load, taints }) => costOf(job, overlap, load, taints, least, config));
}

/** How likely each cost is chosen; sums to 1. Temperature 0: evenly among the cheapest. */
export function probabilities(costs: readonly number[], temperature: number): number[] {
  let least = Number.POSITIVE_INFINITY;
  let most = Number.NEGATIVE_INFINITY;
  for (const cost of costs) {
    least = Math.min(least, cost);
    most = Math.max(most, cost);
  }
  const span = most - least;
  let total = 0;
  const weights = costs.map((cost) => {
    const even = temperature === 0 || span === 0;
    const weight = even ? (cost === least ? 1 : 0) : Math.exp(-(cost - least) / span / temperature);
    total += weight;
    return weight;
  });
  return weights.map((weight) => weight / total);
}
