/**
 * A worker tells routers which KV blocks its prefix cache holds. What a prompt changed waits a moment, so that it leaves together with what
 * comes next and wakes nobody who waits for a first token (decision 0011); routers have assumed as much from their own dispatches.
 */
import type { Engine } from '../../gpu/index.js';
import { type Bus, type Component, type KvOp, openKvPublisher } from '../../transport/index.js';

const holdMs = 100;
/** So many changed blocks leave at once: a batch that grows beyond what it may say becomes a snapshot. */
const holdBlocks = 1_024;

export interface CacheReports {
  /** In the order of the engine's steps. */
  report(ops: readonly KvOp[]): void;
  stop(): void;
}

export function openCacheReports(bus: Bus, component: Component, incarnation: string, engine: Engine): CacheReports {
  const { blockTokens } = engine.card;
  const publisher = openKvPublisher(bus, { component, incarnation, blockTokens });
  let cancel: (() => void) | undefined;
  let held = 0;
  let stopped = false;
  const flush = (): void => {
    cancel?.();
    cancel = undefined;
    held = 0;
    publisher.flush();
  };
  return {
    report(ops) {
      // The engine outlives its listeners.
      if (stopped) return;
      // One engine is one rank.
      publisher.report(0, ops);
      for (const op of ops) held += op.op === 'cleared' ? 0 : op.hashes.length;
      if (held >= holdBlocks) flush();
      else cancel ??= bus.clock.setTimer(holdMs, flush);
    },
    stop() {
      stopped = true;
      cancel?.();
      publisher.stop();
    },
  };
}
