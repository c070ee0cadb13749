import type { Digest } from './content.js';

/** A whole or last block of a prompt: its KV bytes and what they digest to. */
export interface MockBlock {
  readonly hash: string;
  readonly tokens: number;
  readonly bytes: Uint8Array;
  readonly digest: Digest;
}

/** Whole prompt blocks by chained hash, least recently used first out. Holders keep what they hold: eviction only forgets. */
export class PrefixCache {
  readonly #blocks = new Map<string, MockBlock>();

  constructor(private readonly capacity: number) {}

  get size(): number {
    return this.#blocks.size;
  }

  /** The blocks of the longest cached prefix of `hashes`. */
  prefix(hashes: readonly string[]): MockBlock[] {
    const found: MockBlock[] = [];
    for (const hash of hashes) {
      const block = this.#blocks.get(hash);
      if (block === undefined) break;
      this.#blocks.delete(hash);
      this.#blocks.set(hash, block);
      found.push(block);
    }
    return found;
  }

  put(block: MockBlock): void {
    this.#blocks.delete(block.hash);
    this.#blocks.set(block.hash, block);
    for (const oldest of this.#blocks.keys()) {
      if (this.#blocks.size <= this.capacity) break;
      this.#blocks.delete(oldest);
    }
  }

  clear(): void {
    this.#blocks.clear();
  }
}
