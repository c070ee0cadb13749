/** Mock KV through the addon: the pool, the fetch thread and the hashes of the native engine. */
import type { EngineErrorCode } from '../engine.js';
import { type KvFetchStatus, openKvFetcher, openKvPool } from '../kv-pool.js';
import { blockNames, type Transfer, type TransferOptions } from './transfer.js';

const codes: Readonly<Record<Exclude<KvFetchStatus, 'ok'>, EngineErrorCode>> = {
  gone: 'GPU_HANDOFF_GONE',
  mismatch: 'GPU_HANDOFF_MISMATCH',
  stopped: 'GPU_FULL',
};

export function openNativeTransfer(options: TransferOptions): Transfer {
  const pool = openKvPool(options);
  const fetcher = openKvFetcher();
  return {
    pool: pool.ref,
    free: () => options.slots - pool.used,
    used: () => pool.used,
    hashes: blockNames,
    put: (index, tokens, hash, bytes) => pool.put({ index, tokens, hash, bytes }),
    give: (block) => void pool.give(block.offset),
    fetch(from, blocks, done) {
      fetcher.fetch(from, blocks, (result) => {
        if (result.status === 'ok') done({ ok: true, blocks: result.copies });
        else done({ ok: false, code: codes[result.status], message: result.message });
      });
    },
    stop() {
      fetcher.close();
      pool.close();
    },
  };
}
