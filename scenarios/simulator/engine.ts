/** The mock engine in virtual time, with what the simulator must know of it and can do to it. */
import { createMockEngine, type Engine } from '../../gpu/index.js';
import type { Machine } from './machine.js';

export interface WatchedEngine {
  readonly engine: Engine;
  /** Whole prompt blocks in its prefix cache, by hash. */
  readonly cached: ReadonlySet<bigint>;
  /** When a block left it; Infinity: it is there, -Infinity: it never was. */
  leftAt(hash: bigint): number;
  /** It takes no further step, while its process lives. */
  wedge(): void;
  readonly wedged: boolean;
}

export interface EngineSize {
  readonly slots: number;
  readonly cacheBlocks: number;
}

export function openEngine(machine: Machine, { slots, cacheBlocks }: EngineSize): WatchedEngine {
  let wedged = false;
  const unlessWedged = (run: () => void) => () => {
    if (!wedged) run();
  };
  const engine = createMockEngine({
    owner: machine.name,
    speedup: 3,
    slots,
    cacheBlocks,
    kvBlocks: 4_096,
    poolBlocks: 128,
    kvBytesPerToken: 4,
    clock: {
      now: machine.clock.now,
      setTimer: (ms, run) => machine.after(ms, unlessWedged(run)),
      yield: (run) => machine.after(0.001, unlessWedged(run)),
    },
  });
  const cached = new Set<bigint>();
  const left = new Map<bigint, number>();
  const leaves = (hash: bigint) => {
    cached.delete(hash);
    left.set(hash, machine.clock.now());
  };
  /** A wedged thread leaves its commands on the ring, and what it holds stays held. */
  const ring = <T>(command: () => T, instead: T): T => {
    if (!wedged) return command();
    unread++;
    return instead;
  };
  let unread = 0;
  return {
    cached,
    leftAt: (hash) => (cached.has(hash) ? Number.POSITIVE_INFINITY : (left.get(hash) ?? Number.NEGATIVE_INFINITY)),
    get wedged() {
      return wedged;
    },
    wedge() {
      wedged = true;
    },
    engine: {
      card: engine.card,
      limits: engine.limits,
      pool: engine.pool,
      start: (sink) =>
        engine.start({
          step(step) {
            for (const change of step.cache ?? []) {
              if (change.op === 'cleared') for (const hash of cached) leaves(hash);
              else for (const hash of change.hashes) change.op === 'stored' ? cached.add(hash) : leaves(hash);
            }
            sink.step(step);
          },
          died: (error) => sink.died(error),
        }),
      generate: (request) => ring(() => engine.generate(request), { ok: true }),
      prefill: (request, haveBlocks, leaseMs, prefix) =>
        ring(() => engine.prefill(request, haveBlocks, leaseMs, prefix), { ok: true }),
      lend: (key) => ring(() => engine.lend(key), { ok: true }),
      reserve: (request) => ring(() => engine.reserve(request), { ok: true, haveBlocks: 0 }),
      pull: (key, pool, blocks) => ring(() => engine.pull(key, pool, blocks), { ok: true }),
      commit: (key, handoff, first) => ring(() => engine.commit(key, handoff, first), { ok: true }),
      cancel: (key) => ring(() => engine.cancel(key), undefined),
      release: (key) => ring(() => engine.release(key), undefined),
      load: () => ({ ...engine.load(), waiting: engine.load().waiting + unread }),
      stop: () => engine.stop(),
    },
  };
}
