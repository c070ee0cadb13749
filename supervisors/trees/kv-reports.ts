/**
 * A worker tells routers which KV blocks its prefix cache holds. What a prompt changed waits a moment, so that it leaves together with what
 * comes next and wakes nobody who waits for a first token (decision 0011); routers have assumed as much from their own dispatches.
 */
import type { Engine } from '../../gpu/index.js';
import { type Bus, type Component, type KvOp, openKvPublisher } from '../../transport/index.js';

const holdMs = 20;

export interface CacheReports {
  /** In the order of the engine's steps. */
  report(ops: readonly KvOp[]): void;
  stop(): void;
}

export function openCacheReports(bus: Bus, component: Component, incarnation: string, engine: Engine): CacheReports {
  const { blockTokens } = engine.card;
  const publisher = openKvPublisher(bus, { component, incarnation, blockTokens });
  let cancel: (() => void) | undefined;
  let stopped = false;
  return {
    report(ops) {
      // The engine outlives its listeners.
      if (stopped) return;
      // One engine is one rank.
      publisher.report(0, ops);
      cancel ??= bus.clock.setTimer(holdMs, () => {
        cancel = undefined;
        publisher.flush();
      });
    },
    stop() {
      stopped = true;
      cancel?.();
      publisher.stop();
    },
  };
}
