import type { EngineErrorCode } from './engine.js';

export interface GpuErrorEntry {
  readonly code: EngineErrorCode;
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
];
