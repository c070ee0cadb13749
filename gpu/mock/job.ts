import type { BlockRef, Handoff } from '../../transport/index.js';
import type { EngineRequest } from '../engine.js';
import type { Digest } from './content.js';
import type { MockBlock } from './prefix-cache.js';

export type JobState =
  /** In line for slots and KV. */
  | 'waiting'
  /** Its prompt, or what it generated before a migration, is being computed. */
  | 'prefilling'
  /** Some choice of it is decoding. */
  | 'running'
  /** Holds slots for a hand-off; blocks may be pulled. */
  | 'reserved'
  /** The hand-off is verified: it runs from the next iteration on. */
  | 'ready'
  /** Its prompt is computed, its exported blocks wait for `release` or the lease. */
  | 'exported'
  | 'ended';

export interface FirstToken {
  readonly choice: number;
  readonly token: number;
  readonly finished: boolean;
}

/** One request inside the engine. Plain data: every transition is in mock-engine.ts. */
export interface Job {
  readonly request: EngineRequest;
  readonly mode: 'generate' | 'prefill' | 'decode';
  state: JobState;
  readonly hashes: readonly string[];
  /** KV of the prompt by block index; holes while it is pulled. */
  readonly blocks: (MockBlock | undefined)[];
  /** Tokens to compute before the first one is sampled, and how many of them are done. */
  todo: number;
  done: number;
  cachedTokens: number;
  /** Slots and KV blocks held, and the KV blocks that have tokens in them. */
  slots: number;
  kvBlocks: number;
  usedBlocks: number;
  /** Choices that have not ended. */
  live: number;
  /** Mode prefill. */
  readonly firstExport: number;
  readonly leaseMs: number;
  exports: BlockRef[];
  promised: number;
  leaseEnds: number;
  /** Mode decode. */
  haveBlocks: number;
  pulls: number;
  /** Owner of the one pool that blocks come from. */
  pulledFrom: string | undefined;
  commit: { readonly handoff: Handoff; readonly first: readonly FirstToken[] } | undefined;
}

/** One choice while it decodes. */
export interface Run {
  readonly job: Job;
  readonly choice: number;
  readonly base: Digest;
  /** Position of its next token. */
  position: number;
}

/** Tokens recomputed after a migration. */
export function generatedTokens(request: EngineRequest): number {
  let sum = 0;
  for (const choice of request.choices) sum += choice.generated.length;
  return sum;
}
