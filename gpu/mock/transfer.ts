/**
 * How mock KV leaves one engine and reaches another. Two kinds: `native` is the addon's sealed pool and fetch thread, the
 * same as the real engine's; `memory` is a pool in this process, for the simulator. Blocks have the same names in both.
 */
import type { BlockRef, PoolRef } from '../../transport/index.js';
import { hashToHex, sequenceHashes } from '../block-hash.js';
import type { EngineErrorCode } from '../engine.js';
import { digestKv, mix } from './content.js';
import type { EngineClock } from './timing.js';

export type Fetched =
  /** Private, verified copies in the order asked for. */
  | { readonly ok: true; readonly blocks: readonly Uint8Array[] }
  | { readonly ok: false; readonly code: EngineErrorCode; readonly message: string };

export interface Transfer {
  readonly pool: PoolRef;
  /** Blocks that could still be exported. */
  free(): number;
  used(): number;
  /** Chained block hashes as 16 hex digits, the short last block included. */
  hashes(tokens: Uint32Array, blockTokens: number, salt: string): string[];
  /** Copies a block into the pool; undefined when the pool is full. */
  put(index: number, tokens: number, hash: string, bytes: Uint8Array): BlockRef | undefined;
  give(block: BlockRef): void;
  /** `done` is called once, later, on the JavaScript thread; never after `stop`. */
  fetch(pool: PoolRef, blocks: readonly BlockRef[], done: (result: Fetched) => void): void;
  stop(): void;
}

export const blockNames = (tokens: Uint32Array, blockTokens: number, salt: string): string[] =>
  Array.from(sequenceHashes(tokens, blockTokens, salt, { partial: true }), hashToHex);

export interface TransferOptions {
  readonly owner: string;
  readonly epoch: number;
  readonly slots: number;
  readonly slotBytes: number;
}

interface MemoryPool {
  readonly pool: PoolRef;
  readonly slots: Map<number, Uint8Array>;
}

/** Pools of this process by owner and epoch: what /proc is to the native kind. */
const pools = new Map<string, MemoryPool>();

const hex = (a: number, b: number): string => a.toString(16).padStart(8, '0') + b.toString(16).padStart(8, '0');

function checksumOf(bytes: Uint8Array, hash: string): string {
  const { a, b } = digestKv(bytes);
  return hex(mix(a ^ Number.parseInt(hash.slice(0, 8), 16)), mix(b ^ Number.parseInt(hash.slice(8), 16)));
}

function copyOut(pool: PoolRef, blocks: readonly BlockRef[]): Fetched {
  const source = pools.get(`${pool.owner}/${pool.epoch}`);
  if (source === undefined) return { ok: false, code: 'GPU_HANDOFF_GONE', message: 'the pool is gone' };
  const copies: Uint8Array[] = [];
  for (const block of blocks) {
    const bytes = source.slots.get(block.offset)?.slice(0, block.bytes);
    if (bytes?.length !== block.bytes || checksumOf(bytes, block.hash) !== block.checksum) {
      return { ok: false, code: 'GPU_HANDOFF_MISMATCH', message: `block ${block.index} fails its checksum` };
    }
    copies.push(bytes);
  }
  return { ok: true, blocks: copies };
}

export function openMemoryTransfer(options: TransferOptions, clock: EngineClock): Transfer {
  const name = `${options.owner}/${options.epoch}`;
  const bytes = options.slots * options.slotBytes;
  const pool: PoolRef = { backend: 'shm', owner: options.owner, epoch: options.epoch, pid: 0, fd: 0, bytes };
  const slots = new Map<number, Uint8Array>();
  const free = Array.from({ length: options.slots }, (_, slot) => (options.slots - 1 - slot) * options.slotBytes);
  const pending = new Set<() => void>();
  pools.set(name, { pool, slots });
  return {
    pool,
    free: () => free.length,
    used: () => slots.size,
    hashes: blockNames,
    put(index, tokens, hash, bytes) {
      const offset = free.pop();
      if (offset === undefined) return undefined;
      slots.set(offset, bytes.slice());
      return { index, tokens, offset, bytes: bytes.length, checksum: checksumOf(bytes, hash), hash };
    },
    give(block) {
      if (slots.delete(block.offset)) free.push(block.offset);
    },
    fetch(from, blocks, done) {
      const undo = clock.yield(() => {
        pending.delete(undo);
        done(copyOut(from, blocks));
      });
      pending.add(undo);
    },
    stop() {
      for (const undo of pending) undo();
      pending.clear();
      pools.delete(name);
    },
  };
}
