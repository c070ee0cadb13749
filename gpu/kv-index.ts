/**
 * Which workers hold which KV blocks (design 6.4). A block's name is its sequence hash, chained over all before it, so the index needs
 * no tree and no order of arrival; `gpu/native/kv_index.h` says how it works and what happens when it is full. An answer never names
 * a block that a worker has not reported, or has reported as removed; a missed hit shows in `evicted` or `refused`.
 */
import type { KvOp, KvTier } from '../transport/index.js';
import { nativeAddon } from './addon.js';

interface NativeIndex {
  open(): number;
  close(slot: number): void;
  store(slot: number, tier: number, hashes: BigUint64Array, now: number, expires: number): void;
  remove(slot: number, tier: number, hashes: BigUint64Array): void;
  answerIn(rows: Uint32Array): void;
  find(hashes: BigUint64Array, now: number): number;
  blocks(slot: number, tier: number): number;
  stats(): KvIndexStats;
}

export interface KvIndexStats {
  /** Blocks held by anybody. */
  readonly nodes: number;
  /** (block, worker) pairs; those of workers that left count until they are swept. */
  readonly holders: number;
  /** Memory taken; what the allocator adds is estimated. */
  readonly bytes: number;
  /** Blocks dropped to stay within `maxBytes`. */
  readonly evicted: number;
  /** (block, worker) pairs not recorded for want of memory. */
  readonly refused: number;
  /** Removals of what was not there. */
  readonly unknown: number;
  /** Stores of what was there already. */
  readonly repeated: number;
}

/**
 * What one worker rank holds of a prompt, from the first block on and without a hole: `device` blocks, then `host` blocks that are on the
 * host or the device, then `disk` blocks on any tier.
 */
export interface KvOverlap {
  readonly incarnation: string;
  readonly rank: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

export interface KvIndexOptions {
  /** @default 256 MiB: about 8 million blocks, each held by one worker */
  readonly maxBytes?: number;
}

export interface KvIndex {
  /** What a worker rank reports, in order. A rank is known from its first operation on. Throws RangeError beyond 65,536 ranks. */
  apply(incarnation: string, rank: number, ops: readonly KvOp[]): void;
  /**
   * Without reports: the worker is assumed to hold these blocks on its device until `ttlMs` after `nowMs`; assuming again starts the
   * time anew. Times are rounded up to 100 ms. An index is fed by reports or by assumptions, never by both.
   */
  assume(incarnation: string, rank: number, hashes: BigUint64Array, nowMs: number, ttlMs: number): void;
  /** Forgets all ranks of an incarnation, or one; at once. */
  forget(incarnation: string, rank?: number): void;
  /** Every rank that holds the first block of a prompt, in no particular order. `nowMs` matters to assumptions only. */
  find(hashes: BigUint64Array, nowMs?: number): KvOverlap[];
  /** Blocks of one rank on one tier. */
  blocks(incarnation: string, rank: number, tier: KvTier): number;
  stats(): KvIndexStats;
}

const leastBytes = 64 * 1024;
const never = 0xffff_ffff;
const tickMs = 100;
const width = 4;
const tierNumbers: Readonly<Record<KvTier, number>> = { device: 0, host: 1, disk: 2 };

/** Throws RangeError unless `maxBytes` is an integer of at least 64 KiB. */
export function createKvIndex(options: KvIndexOptions = {}): KvIndex {
  const maxBytes = options.maxBytes ?? 256 * 1024 * 1024;
  if (!Number.isSafeInteger(maxBytes) || maxBytes < leastBytes) {
    throw new RangeError(`maxBytes ${maxBytes} is not an integer of at least ${leastBytes}`);
  }
  const native = new (nativeAddon<{ KvIndex: new (maxBytes: number) => NativeIndex }>().KvIndex)(maxBytes);
  const slots = new Map<string, Map<number, number>>();
  const names: ({ readonly incarnation: string; readonly rank: number } | undefined)[] = [];
  let rows = new Uint32Array(256 * width);
  native.answerIn(rows);
  const nowTick = (ms: number) => Math.min(never - 1, Math.max(0, Math.floor(ms / tickMs)));
  const endTick = (ms: number) => Math.min(never - 1, Math.max(0, Math.ceil(ms / tickMs)));

  function open(incarnation: string, rank: number): number {
    const slot = native.open();
    if (slot < 0) throw new RangeError('the index holds as many worker ranks as it can');
    names[slot] = { incarnation, rank };
    let ranks = slots.get(incarnation);
    if (ranks === undefined) {
      ranks = new Map();
      slots.set(incarnation, ranks);
    }
    ranks.set(rank, slot);
    return slot;
  }
  const slotOf = (incarnation: string, rank: number) => slots.get(incarnation)?.get(rank);

  function forget(incarnation: string, rank?: number): void {
    const ranks = slots.get(incarnation);
    if (ranks === undefined) return;
    for (const [each, slot] of ranks) {
      if (rank !== undefined && each !== rank) continue;
      native.close(slot);
      ranks.delete(each);
    }
    if (ranks.size === 0) slots.delete(incarnation);
  }

  return {
    forget,
    apply(incarnation, rank, ops) {
      for (const op of ops) {
        // A slot of its own for what comes after: everything before is gone at once, however much it is.
        if (op.op === 'cleared') forget(incarnation, rank);
        else {
          const slot = slotOf(incarnation, rank) ?? open(incarnation, rank);
          const tier = tierNumbers[op.tier];
          if (op.op === 'stored') native.store(slot, tier, op.hashes, 0, never);
          else native.remove(slot, tier, op.hashes);
        }
      }
    },
    assume(incarnation, rank, hashes, nowMs, ttlMs) {
      const slot = slotOf(incarnation, rank) ?? open(incarnation, rank);
      native.store(slot, tierNumbers.device, hashes, nowTick(nowMs), endTick(nowMs + ttlMs));
    },
    find(hashes, nowMs = 0) {
      const now = nowTick(nowMs);
      let count = native.find(hashes, now);
      if (count * width > rows.length) {
        rows = new Uint32Array(count * width * 2);
        native.answerIn(rows);
        count = native.find(hashes, now);
      }
      const found: KvOverlap[] = new Array(count);
      for (let i = 0, at = 0; i < count; i++, at += width) {
        const { incarnation, rank } = names[rows[at] as number] as { incarnation: string; rank: number };
        found[i] = {
          incarnation,
          rank,
          device: rows[at + 1] as number,
          host: rows[at + 2] as number,
          disk: rows[at + 3] as number,
        };
      }
      return found;
    },
    blocks(incarnation, rank, tier) {
      const slot = slotOf(incarnation, rank);
      return slot === undefined ? 0 : native.blocks(slot, tierNumbers[tier]);
    },
    stats: () => native.stats(),
  };
}
