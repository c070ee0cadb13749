/**
 * When a prompt is worth a prefill worker of its own (conditional disaggregation), as tables. Pure: the caller looks at the workers.
 */

/** Who brings a prompt to a prefill worker: the router, or the decode worker by a queue that prefill workers take from. */
export type DisaggFlow = 'prefill-first' | 'decode-first';

export type DisaggPolicy = 'always' | 'isl_bounding' | 'prefill_load' | 'isl_or_load';

export interface DisaggConfig {
  readonly policy: DisaggPolicy;
  /** Fewer uncached prompt tokens than this, and less than `maxLocalShare` of the prompt: computed on the decode worker. */
  readonly maxLocalTokens: number;
  readonly maxLocalShare: number;
  /** A decode worker whose projected blocks exceed this share of its KV computes no prompts; undefined: no guard. */
  readonly decodeBusyShare: number | undefined;
}

const defaultDisagg: DisaggConfig = {
  policy: 'always',
  maxLocalTokens: 2048,
  maxLocalShare: 0.7,
  decodeBusyShare: undefined,
};

export interface DisaggFacts {
  readonly promptTokens: number;
  /** Of those, tokens that the chosen decode worker has in its cache. */
  readonly cachedTokens: number;
  /** The chosen prefill worker has more waiting than it should; undefined: it cannot be told. */
  readonly prefillBusy: boolean | undefined;
  /** Blocks the chosen decode worker would hold with this request. */
  readonly decodeBlocks: number;
  /** undefined: it has not said, and then it is taken for full. */
  readonly decodeCapacityBlocks: number | undefined;
}

export interface DisaggChoice {
  readonly remote: boolean;
  readonly uncachedTokens: number;
  readonly reason:
    | 'policy'
    | 'short'
    | 'prefill-busy'
    | 'long'
    | 'prefill-free'
    | 'long-and-prefill-free'
    | 'decode-busy'
    /** In the decode-first flow the decode worker looks for itself. */
    | 'decode-first';
}

interface Row {
  /** Reason to compute the prompt on the decode worker. */
  readonly bypass: (short: boolean, busy: boolean) => DisaggChoice['reason'] | undefined;
  /** Reason for a prefill worker otherwise. */
  readonly remote: DisaggChoice['reason'];
}

const rows: Readonly<Record<DisaggPolicy, Row>> = {
  always: { bypass: () => undefined, remote: 'policy' },
  isl_bounding: { bypass: (short) => (short ? 'short' : undefined), remote: 'long' },
  prefill_load: { bypass: (_short, busy) => (busy ? 'prefill-busy' : undefined), remote: 'prefill-free' },
  isl_or_load: {
    bypass: (short, busy) => (short ? 'short' : busy ? 'prefill-busy' : undefined),
    remote: 'long-and-prefill-free',
  },
};

/** Throws RangeError, which names the setting, for a threshold that is out of range. */
export function disaggConfig(given: Partial<DisaggConfig> = {}): DisaggConfig {
  const config = { ...defaultDisagg, ...given };
  if (!Object.hasOwn(rows, config.policy)) throw new RangeError(`there is no policy ${String(config.policy)}`);
  if (!Number.isSafeInteger(config.maxLocalTokens) || config.maxLocalTokens < 0) {
    throw new RangeError(`maxLocalTokens is ${config.maxLocalTokens}: an integer of at least 0 is wanted`);
  }
  for (const key of ['maxLocalShare', 'decodeBusyShare'] as const) {
    const value = config[key];
    if (value !== undefined && !(value >= 0 && value <= 1))
      throw new RangeError(`${key} is ${value}: 0 to 1 is wanted`);
  }
  return config;
}

/** Where the prompt of a request for a decode worker is computed: there, or (`remote`) on the prefill worker chosen for it. */
export function disaggregate(facts: DisaggFacts, config: DisaggConfig): DisaggChoice {
  const { promptTokens, decodeBlocks, decodeCapacityBlocks } = facts;
  const uncachedTokens = Math.max(0, promptTokens - facts.cachedTokens);
  const short = uncachedTokens < config.maxLocalTokens && uncachedTokens < config.maxLocalShare * promptTokens;
  const row = rows[config.policy];
  const bypass = row.bypass(short, facts.prefillBusy === true);
  if (bypass === undefined) return { remote: true, uncachedTokens, reason: row.remote };
  const guarded =
    config.decodeBusyShare !== undefined &&
    (decodeCapacityBlocks === undefined || decodeBlocks > config.decodeBusyShare * decodeCapacityBlocks);
  return guarded
    ? { remote: true, uncachedTokens, reason: 'decode-busy' }
    : { remote: false, uncachedTokens, reason: bypass };
}

export interface DecodeFirstConfig {
  /** At most so many uncached prompt tokens are computed by the decode worker whatever the queue is. */
  readonly maxLocalPrefillLength: number;
  /** With so many prompts in the prefill queue already, the decode worker computes its own. */
  readonly maxPrefillQueueSize: number;
}

const defaultDecodeFirst: DecodeFirstConfig = { maxLocalPrefillLength: 1000, maxPrefillQueueSize: 2 };

/** Throws RangeError, which names the setting, unless both are integers of at least 0. */
export function decodeFirstConfig(given: Partial<DecodeFirstConfig> = {}): DecodeFirstConfig {
  const { maxLocalPrefillLength, maxPrefillQueueSize } = { ...defaultDecodeFirst, ...given };
  const config = { maxLocalPrefillLength, maxPrefillQueueSize };
  for (const [key, value] of Object.entries(config)) {
    if (!Number.isSafeInteger(value) || value < 0)
      throw new RangeError(`${key} is ${value}: an integer of at least 0 is wanted`);
  }
  return config;
}

/** The rule of the decode-first flow, asked by the decode worker itself. */
export function wantsRemotePrefill(
  promptTokens: number,
  cachedTokens: number,
  queuedPrefills: number,
  config: DecodeFirstConfig,
): boolean {
  return promptTokens - cachedTokens > config.maxLocalPrefillLength && queuedPrefills < config.maxPrefillQueueSize;
}

/** What a router needs to know of it all. */
export interface DisaggRouting extends DisaggConfig {
  readonly flow: DisaggFlow;
  /** When a prefill worker is busy, for the policies that ask. */
  readonly prefillBusy: BusyConfig;
}

/** Throws RangeError as `disaggConfig` does. */
export function disaggRouting(given: Partial<DisaggRouting> = {}): DisaggRouting {
  const { flow = 'prefill-first', prefillBusy = {}, ...rest } = given;
  return { ...disaggConfig(rest), flow, prefillBusy };
}

export interface BusyConfig {
  /** Tokens; undefined: this threshold is off. */
  readonly tokens?: number | undefined;
  /** In batches of the worker, of `batchTokens` each; undefined: this threshold is off. */
  readonly share?: number | undefined;
}

/** Does a worker have more prompt tokens waiting than either threshold allows? A worker that has not said its batch size passes the second. */
export function prefillBusy(prefillTokens: number, batchTokens: number | undefined, config: BusyConfig): boolean {
  const over = (threshold: number | undefined) => threshold !== undefined && prefillTokens > threshold;
  return (
    over(config.tokens) || (batchTokens !== undefined && config.share !== undefined && over(config.share * batchTokens))
  );
}
