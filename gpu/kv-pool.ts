/**
 * Both ends of a hand-off as JavaScript sees them: the sealed pool that a worker exports from, and the thread that copies blocks
 * out of peers' pools and verifies the copies (design 6.5). The native engine uses the same C++ without passing here.
 */
import type { BlockRef, PoolRef } from '../transport/index.js';
import { nativeAddon } from './addon.js';
import { hashFromHex, hashToHex } from './block-hash.js';

interface NativePool {
  readonly fd: number;
  readonly bytes: number;
  readonly used: number;
  put(bytes: Uint8Array, hash: bigint): [offset: number, checksum: bigint] | undefined;
  give(offset: number): boolean;
  close(): void;
}

type NativeStatus = 'ok' | 'gone' | 'mismatch' | 'stopped';
type NativeDone = (job: number, status: NativeStatus, message: string, copies: Uint8Array[]) => void;

interface NativeFetcher {
  fetch(
    job: number,
    owner: string,
    epoch: number,
    pid: number,
    fd: number,
    bytes: number,
    numbers: Float64Array,
    hashes: BigUint64Array,
  ): boolean;
  forget(owner: string): void;
  idle(): void;
  close(): void;
}

interface PoolAddon {
  readonly KvPool: new (owner: string, epoch: number, slotBytes: number, slots: number) => NativePool;
  readonly KvFetcher: new (done: NativeDone) => NativeFetcher;
}

export interface KvPoolOptions {
  /** Incarnation that owns the pool, at most 64 bytes. */
  readonly owner: string;
  /** Counts the pools of this incarnation. */
  readonly epoch: number;
  readonly slotBytes: number;
  readonly slots: number;
}

export interface KvPool {
  /** What a peer needs to find it. */
  readonly ref: PoolRef;
  /** Slots taken. */
  readonly used: number;
  /** Copies a block into a free slot; undefined when none is left or the block is empty or larger than a slot. */
  put(block: { index: number; tokens: number; hash: string; bytes: Uint8Array }): BlockRef | undefined;
  /** False when the slot is not taken: freeing twice is refused. */
  give(offset: number): boolean;
  /** Frees the memory once no peer maps it. Everything else does nothing afterwards. */
  close(): void;
}

/** Throws Error when the kernel has no sealed memfd (Linux 5.1) or no memory. */
export function openKvPool(options: KvPoolOptions): KvPool {
  for (const name of ['epoch', 'slotBytes', 'slots'] as const) {
    if (!Number.isSafeInteger(options[name]) || options[name] < 0) throw new RangeError(`${name} ${options[name]}`);
  }
  const { owner, epoch } = options;
  const pool = new (nativeAddon<PoolAddon>().KvPool)(owner, epoch, options.slotBytes, options.slots);
  return {
    ref: { backend: 'shm', owner, epoch, pid: process.pid, fd: pool.fd, bytes: pool.bytes },
    get used() {
      return pool.used;
    },
    put({ index, tokens, hash, bytes }) {
      const taken = pool.put(bytes, hashFromHex(hash));
      if (taken === undefined) return undefined;
      return { index, tokens, offset: taken[0], bytes: bytes.length, checksum: hashToHex(taken[1]), hash };
    },
    give: (offset) => Number.isSafeInteger(offset) && pool.give(offset),
    close: () => pool.close(),
  };
}

export type KvFetchStatus =
  | 'ok'
  /** The owner is gone, or its pid or fd number names something else now. */
  | 'gone'
  /** The pool or a copy is not what the descriptor says. */
  | 'mismatch'
  /** The fetcher was closed, or its queue is full. */
  | 'stopped';

export interface KvFetchResult {
  readonly status: KvFetchStatus;
  /** For people; names the block. */
  readonly message: string;
  /** Private, verified copies in the order asked for; empty unless `ok`. */
  readonly copies: readonly Uint8Array[];
}

export interface KvFetcher {
  /** `done` is called once, later; after `close` not at all. */
  fetch(pool: PoolRef, blocks: readonly BlockRef[], done: (result: KvFetchResult) => void): void;
  /** Drops the mappings of an owner that is gone. */
  forget(owner: string): void;
  /** Joins the thread. */
  close(): void;
}

const fits = (value: number, limit: number): boolean => Number.isInteger(value) && value >= 0 && value <= limit;

function describable(pool: PoolRef, blocks: readonly BlockRef[]): boolean {
  return (
    fits(pool.pid, 0x7fff_ffff) &&
    fits(pool.fd, 0x7fff_ffff) &&
    fits(pool.bytes, Number.MAX_SAFE_INTEGER) &&
    fits(pool.epoch, Number.MAX_SAFE_INTEGER) &&
    blocks.every(
      (block) =>
        fits(block.index, 0xffff_ffff) &&
        fits(block.tokens, 0xffff_ffff) &&
        fits(block.offset, Number.MAX_SAFE_INTEGER) &&
        fits(block.bytes, 0xffff_ffff),
    )
  );
}

export function openKvFetcher(): KvFetcher {
  const open = new Map<number, (result: KvFetchResult) => void>();
  let jobs = 0;
  let closed = false;
  const native = new (nativeAddon<PoolAddon>().KvFetcher)((job, status, message, copies) => {
    finish(job, { status, message, copies });
  });
  function finish(job: number, result: KvFetchResult): void {
    const done = open.get(job);
    open.delete(job);
    if (open.size === 0) native.idle();
    done?.(result);
  }
  return {
    fetch(pool, blocks, done) {
      jobs = (jobs + 1) >>> 0;
      const job = jobs;
      const refuse = (status: KvFetchStatus, message: string): void => {
        setImmediate(() => {
          if (!closed) done({ status, message, copies: [] });
        });
      };
      if (!describable(pool, blocks)) {
        refuse('mismatch', 'a number of the descriptor is out of range');
        return;
      }
      const numbers = new Float64Array(blocks.length * 4);
      const hashes = new BigUint64Array(blocks.length * 2);
      for (const [at, block] of blocks.entries()) {
        numbers.set([block.index, block.tokens, block.offset, block.bytes], at * 4);
        hashes[at * 2] = hashFromHex(block.checksum);
        hashes[at * 2 + 1] = hashFromHex(block.hash);
      }
      open.set(job, done);
      if (native.fetch(job, pool.owner, pool.epoch, pool.pid, pool.fd, pool.bytes, numbers, hashes)) return;
      open.delete(job);
      refuse('stopped', closed ? 'the fetcher is closed' : 'too many copies are under way');
    },
    forget: (owner) => native.forget(owner),
    close() {
      closed = true;
      open.clear();
      native.close();
    },
  };
}
