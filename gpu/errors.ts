import type { EngineErrorCode } from './engine.js';

/** Codes of failures before an engine exists: what `prepareWeights` and `convertTo` reject with. */
export type WeightsErrorCode =
  | 'GPU_WEIGHTS_MISSING'
  | 'GPU_WEIGHTS_UNUSABLE'
  | 'GPU_WEIGHTS_FOREIGN'
  | 'GPU_WEIGHTS_BUSY'
  | 'GPU_WEIGHTS_FAILED';

export interface GpuErrorEntry {
  readonly code: EngineErrorCode | WeightsErrorCode;
  /** Shown when the failure carries no text of its own. */
  readonly message: string;
  /** Another worker, or the same one later, may answer. */
  readonly retryable: boolean;
  readonly meaning: string;
}

/** Every way an engine refuses or fails. Matched by code, never by text. */
export const gpuErrors: readonly GpuErrorEntry[] = [
  {
    code: 'GPU_FULL',
    message: 'no free slot',
    retryable: true,
    meaning: 'every slot is taken and the queue is full, or too many transfers are under way',
  },
  {
    code: 'GPU_TOO_LONG',
    message: 'longer than a sequence may be',
    retryable: false,
    meaning: 'prompt and tokens so far exceed the context of the model or of this engine',
  },
  {
    code: 'GPU_BAD_REQUEST',
    message: 'the request makes no sense',
    retryable: false,
    meaning: 'a token outside the vocabulary, an empty prompt, a parameter out of range, a key in use',
  },
  {
    code: 'GPU_UNKNOWN_KEY',
    message: 'no such request',
    retryable: true,
    meaning: 'a pull or commit for a reservation that ended or never was',
  },
  {
    code: 'GPU_DECODE_FAILED',
    message: 'the library failed',
    retryable: true,
    meaning: 'llama_decode returned an error, gave no finite logits, or a sequence did not hold what it should',
  },
  {
    code: 'GPU_HANDOFF_MISMATCH',
    message: 'the KV is not what it should be',
    retryable: true,
    meaning: "the receiver's private copy, or its description, failed a check; nothing of it was used",
  },
  {
    code: 'GPU_HANDOFF_GONE',
    message: 'the KV is gone',
    retryable: true,
    meaning: 'the exporting pool or its owner is gone, or the lease ran out',
  },
  {
    code: 'GPU_POOL_FULL',
    message: 'no room to export',
    retryable: true,
    meaning: 'the export pool cannot take the blocks of another prompt',
  },
  {
    code: 'GPU_STOPPED',
    message: 'the engine has stopped',
    retryable: true,
    meaning: 'stop was called, or its thread ended',
  },
  {
    code: 'GPU_WEIGHTS_MISSING',
    message: 'there is no model file',
    retryable: false,
    meaning: 'the source file does not exist or cannot be read',
  },
  {
    code: 'GPU_WEIGHTS_UNUSABLE',
    message: 'the model file is damaged or of an unknown kind',
    retryable: false,
    meaning: 'the library cannot load or evaluate the source file: truncated, garbage, or not a decoder model',
  },
  {
    code: 'GPU_WEIGHTS_FOREIGN',
    message: 'the model file is not the one that was asked for',
    retryable: false,
    meaning: 'its hash differs from the card of the model that this worker joins',
  },
  {
    code: 'GPU_WEIGHTS_BUSY',
    message: 'another process is converting this model',
    retryable: true,
    meaning: 'the lock beside the converted weights did not come free in time',
  },
  {
    code: 'GPU_WEIGHTS_FAILED',
    message: 'the weights cannot be converted',
    retryable: true,
    meaning: 'no room on the disk, no permission, or the conversion was stopped or ran into its deadline',
  },
];
