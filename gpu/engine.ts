/**
 * One interface for every engine that dynact owns: `llama` (the native addon) and `mock` (a timing model). The GPU actor is
 * its only caller. All methods are synchronous and never block: they put a command on the engine's ring and return; what
 * happens comes back through `EngineSink`, at most one call per engine step.
 */
import type { BlockRef, Handoff, KvOp, LentPrefix, PoolRef, Sampling } from '../transport/index.js';

export interface ModelCard {
  /** Model id as clients name it. */
  readonly id: string;
  readonly engine: 'llama' | 'mock';
  /** Weights file; '' for mock. */
  readonly path: string;
  /** SHA-256 of the canonical source file; names the model whatever its run-time format. */
  readonly sourceHash: string;
  /** Weight format the engine runs, e.g. `q4_0-pure`. */
  readonly format: string;
  /** Equal on two workers = their KV is interchangeable: source, format, library version, KV type, attention kernel. */
  readonly fingerprint: string;
  /** Element type of the KV as it is handed over, e.g. `f16`. */
  readonly kvType: string;
  /** Names how a block's bytes are laid out (layers, row sizes); equal on both ends of a hand-off. */
  readonly kvLayout: string;
  readonly contextTokens: number;
  readonly vocabTokens: number;
  readonly blockTokens: number;
}

export interface EngineLimits {
  readonly slots: number;
  /** KV capacity in blocks over all slots. */
  readonly kvBlocks: number;
  /** Most tokens one sequence may hold, prompt and output. */
  readonly sequenceTokens: number;
}

export interface EngineChoice {
  readonly index: number;
  /** Tokens the client already has (migration): recomputed in calls of fewer than 64 rows, design 6.3. */
  readonly generated: Uint32Array;
}

export interface EngineRequest {
  /** Names the request in this engine; unique for the engine's life. 1 … 2^32 − 1. */
  readonly key: number;
  readonly prompt: Uint32Array;
  readonly choices: readonly EngineChoice[];
  readonly sampling: Sampling;
  readonly maxTokens: number;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  readonly logprobs: number;
  readonly cacheSalt: string;
}

/** Codes an engine refuses or fails with. `retryElsewhere` and friends are the router's business. */
export type EngineErrorCode =
  | 'GPU_FULL' // no slot or no KV left
  | 'GPU_TOO_LONG' // longer than a sequence may be, here or anywhere
  | 'GPU_BAD_REQUEST' // token id outside the vocabulary, empty prompt, duplicate key
  | 'GPU_UNKNOWN_KEY'
  | 'GPU_DECODE_FAILED' // the library returned an error
  | 'GPU_HANDOFF_MISMATCH' // the receiver's copy failed a check (promise P3)
  | 'GPU_HANDOFF_GONE' // pool or owner is gone, or the lease ran out
  | 'GPU_POOL_FULL' // no room to export
  | 'GPU_STOPPED';

export interface EngineError {
  readonly code: EngineErrorCode;
  readonly message: string;
}

export type Verdict<T = object> = ({ readonly ok: true } & T) | ({ readonly ok: false } & EngineError);

/** One choice's token, or its end, in a step. */
export interface EngineToken {
  readonly key: number;
  readonly choice: number;
  /** Position among the generated tokens, from 0. */
  readonly position: number;
  /** -1: the choice ends here without a token. */
  readonly token: number;
  /** `finishCodes` of transport/messages. */
  readonly finish: number;
  readonly logprobs?: readonly [number, readonly (readonly [number, number])[]];
}

export interface EngineStep {
  /** Steps so far, this one included. */
  readonly steps: number;
  readonly tokens: readonly EngineToken[];
  /** Prompt progress of prefilling requests: [key, tokens done, tokens in all, tokens from cache]. */
  readonly progress: readonly (readonly [number, number, number, number])[];
  /** Exported blocks that are complete in the pool, in order (mode prefill). */
  readonly exported: readonly { readonly key: number; readonly blocks: readonly BlockRef[] }[];
  /** The whole prompt is computed and exported (mode prefill); `tokens` of this or an earlier step has the first tokens. */
  readonly prefilled: readonly { readonly key: number; readonly cachedTokens: number }[];
  /** Requests that the receiver's engine took over from a hand-off: decode goes on. */
  readonly committed: readonly number[];
  readonly failed: readonly ({ readonly key: number } & EngineError)[];
  /** Whole prompt blocks that entered and left the prefix cache since the last step, in order; absent: none, or it is not told. */
  readonly cache?: readonly KvOp[];
}

export interface EngineSink {
  /** One call per engine step, on the JavaScript thread. */
  step(step: EngineStep): void;
  /** The engine thread ended by itself: nothing further will come. */
  died(error: EngineError): void;
}

export interface EngineLoad {
  readonly busySlots: number;
  readonly waiting: number;
  readonly usedKvBlocks: number;
  readonly cachedBlocks: number;
  readonly steps: number;
  /** Grows while the engine computes, within a step too: standing still with work is being wedged, a long chunk is not. */
  readonly progress: number;
  /** Exported blocks not yet released. */
  readonly exportedBlocks: number;
}

export interface Engine {
  readonly card: ModelCard;
  readonly limits: EngineLimits;
  /** The pool this engine exports from; undefined for an engine that never exports. */
  readonly pool: PoolRef | undefined;

  start(sink: EngineSink): void;

  /** Mode aggregated: prefill, then decode, here. Needs a slot per choice; waits in the engine's bounded queue. */
  generate(request: EngineRequest): Verdict;
  /**
   * Mode prefill: compute the prompt, export its KV from block `haveBlocks` on, sample the first token of every choice whose
   * `generated` is empty. The exported blocks live until `release(key)` or `leaseMs` after the prompt was finished.
   * `prefix`: leading blocks that a peer lends; what is missing here is copied and verified first, and computed if that fails.
   */
  prefill(request: EngineRequest, haveBlocks: number, leaseMs: number, prefix?: LentPrefix): Verdict;
  /** Mode decode, step 1: hold slots and host memory. `haveBlocks` leading prompt blocks are already in the prefix cache. */
  reserve(request: EngineRequest): Verdict<{ readonly haveBlocks: number }>;
  /**
   * Mode decode, after step 1: offers the leading blocks that the prefix cache has to whoever computes the prompt. They come in `exported` of a
   * step, once, as many as the pool has room for, and live as long as the reservation does.
   */
  lend(key: number): Verdict;
  /** Step 2, any number of times, off the engine thread: copy these blocks and verify the copy. */
  pull(key: number, pool: PoolRef, blocks: readonly BlockRef[]): Verdict;
  /**
   * Step 3: pulls what is missing, checks fingerprint, layout, positions without holes, hashes against the reserved prompt and
   * every checksum, then decodes from `first` on. A choice with `finished` gets no slot. Ends in `committed` or `failed`.
   */
  commit(
    key: number,
    handoff: Handoff,
    first: readonly { choice: number; token: number; finished: boolean }[],
  ): Verdict;
  /** Ends a request in any state, without further events; unknown keys are fine. Frees slots within one step. */
  cancel(key: number): void;
  /** Frees the exported blocks of a prefilled request; unknown keys are fine. */
  release(key: number): void;

  load(): EngineLoad;
  /** Joins the engine thread, then frees every native handle. Resolves once nothing native is left. */
  stop(): Promise<void>;
}
