/** What a mock engine refuses to take, and why: requests that cannot run, blocks and hand-offs that are not the reserved prompt's. */
import type { BlockRef, Handoff, LentPrefix } from '../../transport/index.js';
import type { EngineError, EngineErrorCode, EngineRequest } from '../engine.js';
import { mockVocabularySize } from '../mock-vocabulary.js';
import type { Job } from './job.js';
import type { MockSettings } from './options.js';

export type Refusal = { readonly ok: false } & EngineError;

export const refuse = (code: EngineErrorCode, message: string): Refusal => ({ ok: false, code, message });

/** KV of a whole request, taken at once: nothing that was admitted can run out of it. */
export function kvBlocksOf({ prompt, choices, maxTokens }: EngineRequest, blockTokens: number): number {
  return Math.ceil(prompt.length / blockTokens) + choices.length * Math.ceil(maxTokens / blockTokens);
}

/** Undefined: it could run here, now or later. */
export function wrongRequest(request: EngineRequest, { limits, card }: MockSettings): Refusal | undefined {
  const { key, prompt, choices, maxTokens } = request;
  if (!Number.isInteger(key) || key < 1 || key > 0xffff_ffff) return refuse('GPU_BAD_REQUEST', `key ${key}`);
  if (prompt.length === 0) return refuse('GPU_BAD_REQUEST', 'the prompt is empty');
  if (choices.length === 0 || choices.length > limits.slots) {
    return refuse('GPU_BAD_REQUEST', `${choices.length} choices, ${limits.slots} slots`);
  }
  if (new Set(choices.map((choice) => choice.index)).size !== choices.length) {
    return refuse('GPU_BAD_REQUEST', 'two choices have the same index');
  }
  for (const tokens of [prompt, ...choices.map((choice) => choice.generated)]) {
    for (const token of tokens) {
      if (token >= mockVocabularySize) return refuse('GPU_BAD_REQUEST', `token ${token} is not in the vocabulary`);
    }
  }
  if (!Number.isInteger(maxTokens) || maxTokens < 1) return refuse('GPU_BAD_REQUEST', `maxTokens ${maxTokens}`);
  if (prompt.length + maxTokens > limits.sequenceTokens || kvBlocksOf(request, card.blockTokens) > limits.kvBlocks) {
    return refuse('GPU_TOO_LONG', `${prompt.length} + ${maxTokens} tokens, ${limits.sequenceTokens} fit`);
  }
  return undefined;
}

/** Why these blocks cannot be the reserved prompt's, if they cannot. */
export function wrongBlock(job: Job, blocks: readonly BlockRef[], { card, words }: MockSettings): string | undefined {
  const { blockTokens } = card;
  for (const block of blocks) {
    const from = block.index * blockTokens;
    const tokens = Math.min(blockTokens, job.request.prompt.length - from);
    if (tokens < 1 || block.tokens !== tokens) return `block ${block.index} has ${block.tokens} tokens`;
    if (block.hash !== job.hashes[block.index]) return `block ${block.index} is of another prompt`;
    if (block.bytes !== tokens * words * 4) return `block ${block.index} has ${block.bytes} bytes`;
  }
  return undefined;
}

/** The blocks of a lent prefix that are missing after the first `here`, in order; undefined: it is of no use. */
export function missingOf(job: Job, prefix: LentPrefix, here: number, settings: MockSettings): BlockRef[] | undefined {
  const { card } = settings;
  const alike =
    prefix.fingerprint === card.fingerprint && prefix.kvType === card.kvType && prefix.layout === card.kvLayout;
  // The last token is computed in any case.
  const usable = Math.floor((job.request.prompt.length - 1) / card.blockTokens);
  const missing = prefix.blocks.filter(({ index }) => index >= here && index < usable);
  const whole = missing.every(({ index, tokens }, at) => index === here + at && tokens === card.blockTokens);
  return alike && whole && missing.length > 0 && wrongBlock(job, missing, settings) === undefined ? missing : undefined;
}

/** Why this is no hand-off for the grant that `job` holds, if it is not. */
export function wrongHandoff(job: Job, handoff: Handoff, settings: MockSettings): string | undefined {
  const { card } = settings;
  if (handoff.fingerprint !== card.fingerprint) return `fingerprint ${handoff.fingerprint}`;
  if (handoff.kvType !== card.kvType) return `KV of type ${handoff.kvType}`;
  if (handoff.layout !== card.kvLayout) return `KV laid out as ${handoff.layout}`;
  if (handoff.blockTokens !== card.blockTokens) return `blocks of ${handoff.blockTokens} tokens`;
  if (handoff.promptTokens !== job.request.prompt.length) return `a prompt of ${handoff.promptTokens} tokens`;
  if (handoff.firstBlock > job.haveBlocks) return `blocks ${job.haveBlocks} to ${handoff.firstBlock - 1} are missing`;
  if (handoff.blocks.length !== job.hashes.length - handoff.firstBlock) return `${handoff.blocks.length} blocks`;
  if ((job.pulledFrom ?? handoff.pool.owner) !== handoff.pool.owner) return 'blocks were pulled from another pool';
  const hole = handoff.blocks.findIndex((block, at) => block.index !== handoff.firstBlock + at);
  if (hole >= 0) return `block ${handoff.firstBlock + hole} is missing`;
  return wrongBlock(job, handoff.blocks, settings);
}
