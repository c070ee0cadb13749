/**
 * What the mock engine computes. KV bytes are a function of the tokens; the prompt's digest is a function of the KV bytes;
 * token i of choice c is a function of (digest, seed, c, i). A decode worker digests the bytes it received, so wrong KV
 * gives wrong text, as it would with a real model.
 */
import { mockFirstHalf, mockFirstWord, mockSplitCount, mockVocabularySize } from '../mock-vocabulary.js';

/** Two 32-bit lanes: BigInt is too slow for every token. */
export interface Digest {
  readonly a: number;
  readonly b: number;
}

/** Finalizer of murmur3: every input bit reaches every output bit. */
export function mix(x: number): number {
  let h = x | 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** KV of `tokens`, the first of which is at `position`. `words` 32-bit words per token. */
export function kvOf(tokens: Uint32Array, position: number, words: number): Uint8Array {
  const kv = new Uint32Array(tokens.length * words);
  let at = 0;
  for (let i = 0; i < tokens.length; i += 1) {
    const row = mix((tokens[i] ?? 0) ^ Math.imul(position + i + 1, 0x9e3779b1));
    for (let w = 0; w < words; w += 1) kv[at++] = Math.imul(row + w, 0x27d4eb2f) ^ (row >>> 15);
  }
  return new Uint8Array(kv.buffer);
}

/** Digest of one block's KV. The bytes must be a multiple of 4 and aligned to 4. */
export function digestKv(bytes: Uint8Array): Digest {
  const kv = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >>> 2);
  let a = 0x2545f491;
  let b = kv.length;
  for (let i = 0; i < kv.length; i += 1) {
    const word = kv[i] ?? 0;
    a = Math.imul(a ^ word, 0x01000193) ^ (a >>> 13);
    b = (Math.imul(b, 31) + word) | 0;
  }
  return { a: mix(a), b: mix(b) };
}

export function chain(digests: readonly Digest[]): Digest {
  let a = 1;
  let b = 2;
  for (const digest of digests) {
    a = mix(a ^ digest.a);
    b = mix(Math.imul(b, 3) + digest.b);
  }
  return { a, b };
}

/** What stays the same for all tokens of one choice. */
export function choiceBase(prompt: Digest, seed: number, choice: number): Digest {
  const low = seed >>> 0;
  const high = Math.floor(seed / 2 ** 32);
  return {
    a: mix(prompt.a ^ mix(low ^ Math.imul(choice + 1, 0x9e3779b1))),
    b: mix(prompt.b ^ mix(high + Math.imul(choice + 1, 0x85ebca77))),
  };
}

/**
 * Token at `position` of the output. One pair of positions in 32 is a character cut in two halves; all others are words.
 */
export function tokenAt(base: Digest, position: number): number {
  const pair = mix(base.a ^ Math.imul((position >>> 1) + 1, 0x9e3779b1));
  if ((pair & 31) === 0) return mockFirstHalf + 2 * ((pair >>> 5) % mockSplitCount) + (position & 1);
  const word = mix(base.b ^ Math.imul(position + 1, 0xc2b2ae3d) ^ pair);
  return mockFirstWord + (word % (mockVocabularySize - mockFirstWord));
}

/** Log probabilities in the shape of an engine's: the token's own, then `count` alternatives with it in front, falling. */
export function logprobsAt(
  base: Digest,
  position: number,
  token: number,
  count: number,
): readonly [number, readonly (readonly [number, number])[]] {
  const own = -0.01 - (mix(base.a + position) % 1000) / 2000;
  const top: (readonly [number, number])[] = [];
  for (let rank = 0; rank < count; rank += 1) {
    const alternative = mockFirstWord + ((token + rank * 7919) % (mockVocabularySize - mockFirstWord));
    top.push([rank === 0 ? token : alternative, own - rank * 0.75]);
  }
  return [own, top];
}

export interface AnswerOptions {
  readonly blockTokens: number;
  readonly kvBytesPerToken: number;
  readonly seed: number;
  readonly choice: number;
}

/** What a mock engine of these sizes answers to a prompt, token by token, whoever computes it: the oracle of the simulator. */
export function mockAnswer(prompt: Uint32Array, options: AnswerOptions): (position: number) => number {
  const { blockTokens, kvBytesPerToken, seed, choice } = options;
  const digests: Digest[] = [];
  for (let from = 0; from < prompt.length; from += blockTokens) {
    digests.push(digestKv(kvOf(prompt.subarray(from, from + blockTokens), from, kvBytesPerToken / 4)));
  }
  const base = choiceBase(chain(digests), seed, choice);
  return (position) => tokenAt(base, position);
}
