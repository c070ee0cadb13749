/** What a mock engine can be told, with its defaults. */
import type { EngineLimits, ModelCard } from '../engine.js';
import { mockVocabularySize } from '../mock-vocabulary.js';
import { type EngineClock, systemClock } from './timing.js';

export interface MockEngineOptions {
  /** Incarnation of the worker: owner of the export pool. */
  readonly owner: string;
  /** Counts the pools of this incarnation. @default 1 */
  readonly poolEpoch?: number;
  /** @default 'mock' */
  readonly model?: string;
  /** Time runs this many times faster than the model; 0 = no waiting at all. @default 1 */
  readonly speedup?: number;
  /** Every iteration takes this many milliseconds (divided by `speedup`) instead of what the formulas say. */
  readonly stepMs?: number;
  /** @default 256 */
  readonly slots?: number;
  /** @default 16384 */
  readonly kvBlocks?: number;
  /** Whole prompt blocks kept for later requests; 0 turns the prefix cache off. @default 4096 */
  readonly cacheBlocks?: number;
  /** @default 64 */
  readonly blockTokens?: number;
  /** @default 32768 */
  readonly sequenceTokens?: number;
  /** Requests that may wait for a slot; the next one is refused with GPU_FULL. @default 1024 */
  readonly waiting?: number;
  /** Prompt tokens computed in one iteration at most. @default 8192 */
  readonly batchTokens?: number;
  /** Blocks that may be exported at a time. @default 1024 */
  readonly poolBlocks?: number;
  /** Size of the KV of one token, a multiple of 4. @default 32 */
  readonly kvBytesPerToken?: number;
  /** Two engines hand over to each other only if these are equal. */
  readonly fingerprint?: string;
  /** @default the system's clock */
  readonly clock?: EngineClock;
  /**
   * How KV leaves this engine: `native` is the addon's sealed shared memory, good between processes; with `memory` both
   * engines are in this process. @default `memory` if a clock is given, for a virtual clock cannot wait for a thread; else `native`
   */
  readonly transfer?: 'native' | 'memory';
}

/** Options that hold together. */
export interface MockSettings {
  readonly card: ModelCard;
  readonly limits: EngineLimits;
  readonly speedup: number;
  readonly stepMs: number | undefined;
  /** 32-bit words of the KV of one token. */
  readonly words: number;
  readonly waiting: number;
  readonly batchTokens: number;
  readonly cacheBlocks: number;
  readonly pool: { readonly owner: string; readonly epoch: number; readonly slots: number; readonly slotBytes: number };
  readonly transfer: 'native' | 'memory';
  readonly clock: EngineClock;
}

/** Throws RangeError, which names the option. */
export function resolveOptions(options: MockEngineOptions): MockSettings {
  const blockTokens = positive('blockTokens', options.blockTokens ?? 64);
  const bytes = positive('kvBytesPerToken', options.kvBytesPerToken ?? 32, 4);
  if (bytes % 4 !== 0) throw new RangeError('kvBytesPerToken must be a multiple of 4');
  const { speedup = 1, stepMs } = options;
  if (!(speedup >= 0)) throw new RangeError('speedup must be 0 or more');
  if (stepMs !== undefined && !(stepMs >= 0)) throw new RangeError('stepMs must be 0 or more');
  const limits = {
    slots: positive('slots', options.slots ?? 256),
    kvBlocks: positive('kvBlocks', options.kvBlocks ?? 16_384),
    sequenceTokens: positive('sequenceTokens', options.sequenceTokens ?? 32_768),
  };
  const model = options.model ?? 'mock';
  const card: ModelCard = {
    id: model,
    engine: 'mock',
    path: '',
    sourceHash: '',
    format: 'mock',
    kvType: 'u32',
    kvLayout: `mock/${bytes}`,
    fingerprint: options.fingerprint ?? `mock/1/${model}/${bytes}/${blockTokens}`,
    contextTokens: limits.sequenceTokens,
    vocabTokens: mockVocabularySize,
    blockTokens,
  };
  return {
    card,
    limits,
    speedup,
    stepMs,
    words: bytes / 4,
    waiting: positive('waiting', options.waiting ?? 1024, 0),
    batchTokens: positive('batchTokens', options.batchTokens ?? 8192),
    cacheBlocks: positive('cacheBlocks', options.cacheBlocks ?? 4096, 0),
    pool: {
      owner: options.owner,
      epoch: positive('poolEpoch', options.poolEpoch ?? 1, 0),
      slots: positive('poolBlocks', options.poolBlocks ?? 1024),
      slotBytes: bytes * blockTokens,
    },
    transfer: options.transfer ?? (options.clock === undefined ? 'native' : 'memory'),
    clock: options.clock ?? systemClock,
  };
}

function positive(name: string, value: number, least = 1): number {
  if (!Number.isSafeInteger(value) || value < least)
    throw new RangeError(`${name} must be an integer of at least ${least}`);
  return value;
}
