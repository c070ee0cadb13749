import type { KvOp } from '../../transport/index.js';
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
  #changes: { readonly op: 'stored' | 'removed'; readonly hashes: string[] }[] = [];

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
    if (this.capacity === 0) return;
    if (!this.#blocks.delete(block.hash)) this.#note('stored', block.hash);
    this.#blocks.set(block.hash, block);
    for (const oldest of this.#blocks.keys()) {
      if (this.#blocks.size <= this.capacity) break;
      this.#blocks.delete(oldest);
      this.#note('removed', oldest);
    }
  }

  /** What entered and left since the last call, in order; undefined: nothing. */
  changes(): KvOp[] | undefined {
    if (this.#changes.length === 0) return undefined;
    const ops = this.#changes.map(({ op, hashes }) => ({
      op,
      tier: 'device' as const,
      hashes: BigUint64Array.from(hashes, (hash) => BigInt(`0x${hash}`)),
    }));
    this.#changes = [];
    return ops;
  }

  #note(op: 'stored' | 'removed', hash: string): void {
    let last = this.#changes.at(-1);
    if (last?.op !== op) {
      last = { op, hashes: [] };
      this.#changes.push(last);
    }
    last.hashes.push(hash);
  }

  clear(): void {
    this.#blocks.clear();
  }
}
