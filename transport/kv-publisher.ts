/**
 * A worker's side of the KV events: what its engine reports goes out once per engine turn, and now and then, or when somebody has lost
 * the thread, everything it holds goes out as a snapshot. Batches are sent, not stored with an answer: what gets lost shows as a gap and
 * is mended by a snapshot, which is stored with one.
 */
import { address, type Component } from './address.js';
import type { Bus, Stop } from './bus.js';
import { decodeKvQuestion, encodeKv, encodeKvAnswer, type KvOp, kvLimits, kvTiers } from './kv-events.js';
import { subjects } from './subjects.js';

export interface KvPublisherOptions {
  readonly component: Component;
  readonly incarnation: string;
  readonly blockTokens: number;
  /** A snapshot is due after so many batches, so that a router that starts has little to read. @default 4096 */
  readonly snapshotEvery?: number;
  /** Blocks of one engine turn; a turn that changes more is told as a snapshot. @default 8192 */
  readonly turnBlocks?: number;
}

export interface KvPublisher {
  /** What one rank has stored or removed, in order. Kept until `flush`; what changes nothing is dropped. */
  report(rank: number, ops: readonly KvOp[]): void;
  /** Sends what was reported: once per engine turn. */
  flush(): void;
  /** Blocks that a rank holds, a block on two tiers counting once. */
  held(rank: number): number;
  /** Number of the last batch of a rank; 0: none. */
  seq(rank: number): number;
  readonly counters: {
    readonly batches: number;
    readonly blocks: number;
    readonly snapshots: number;
    readonly failed: number;
  };
  stop: Stop;
}

interface Rank {
  readonly number: number;
  /** Tiers as bits, by hash: all that a snapshot says. */
  readonly held: Map<bigint, number>;
  pending: { readonly kind: 'stored' | 'removed'; readonly tier: number; readonly hashes: bigint[] }[];
  pendingBlocks: number;
  cleared: boolean;
  changed: boolean;
  /** The turn changed more than a batch may say. */
  overflow: boolean;
  seq: number;
  sinceSnapshot: number;
  /** A snapshot must go out: something was not sent, or somebody asked. */
  owes: boolean;
  storing: boolean;
  failures: number;
  notBefore: number;
  timer: Stop | undefined;
}

const storeMs = 5_000;
/** Least time between two snapshots of a rank, whoever asks; also the first pause after one that failed. */
const pauseMs = 500;
const longestPauseMs = 30_000;

export function openKvPublisher(bus: Bus, options: KvPublisherOptions): KvPublisher {
  const { component, incarnation, blockTokens } = options;
  const snapshotEvery = options.snapshotEvery ?? 4_096;
  const turnBlocks = Math.min(options.turnBlocks ?? 8_192, kvLimits.blocks);
  const subject = subjects(bus.namespace);
  const counters = { batches: 0, blocks: 0, snapshots: 0, failed: 0 };
  const ranks = new Map<number, Rank>();
  let snapshots = 0;
  let stopped = false;

  function rankOf(number: number): Rank {
    let rank = ranks.get(number);
    if (rank === undefined) {
      rank = {
        number,
        held: new Map(),
        pending: [],
        pendingBlocks: 0,
        cleared: false,
        changed: false,
        overflow: false,
        seq: 0,
        sinceSnapshot: 0,
        owes: false,
        storing: false,
        failures: 0,
        notBefore: Number.NEGATIVE_INFINITY,
        timer: undefined,
      };
      ranks.set(number, rank);
    }
    return rank;
  }

  function note(rank: Rank, kind: 'stored' | 'removed', tier: number, hash: bigint): void {
    rank.changed = true;
    if (rank.pendingBlocks === turnBlocks) {
      rank.overflow = true;
      return;
    }
    let last = rank.pending.at(-1);
    if (last?.kind !== kind || last.tier !== tier) {
      last = { kind, tier, hashes: [] };
      rank.pending.push(last);
      if (rank.pending.length === kvLimits.ops) rank.overflow = true;
    }
    last.hashes.push(hash);
    rank.pendingBlocks += 1;
  }

  function flush(rank: Rank): void {
    if (!rank.changed) return;
    // Numbered whether it goes out or not: a snapshot with this number is newer than what anybody has.
    rank.seq += 1;
    rank.sinceSnapshot += 1;
    // A batch that cannot be sent is replaced by a snapshot. Later ones go out all the same: they show the gap.
    if (bus.state !== 'up' || rank.overflow) rank.owes = true;
    else {
      const ops: KvOp[] = rank.cleared ? [{ op: 'cleared' }] : [];
      for (const { kind, tier, hashes } of rank.pending) {
        ops.push({ op: kind, tier: kvTiers[tier] as (typeof kvTiers)[number], hashes: BigUint64Array.from(hashes) });
      }
      const dropped = bus.counters.dropped;
      bus.send(subject.kv(incarnation, rank.number), encodeKv({ seq: rank.seq, blockTokens, ops }));
      if (bus.counters.dropped > dropped) rank.owes = true;
      counters.batches += 1;
      counters.blocks += rank.pendingBlocks;
    }
    rank.pending = [];
    rank.pendingBlocks = 0;
    rank.cleared = false;
    rank.changed = false;
    rank.overflow = false;
    if (rank.sinceSnapshot >= snapshotEvery) rank.owes = true;
    if (rank.owes) snapshot(rank);
  }

  /** Sends what is owed, unless one is on its way, the broker is away, or the last one was a moment ago. */
  function snapshot(rank: Rank): void {
    if (stopped || !rank.owes || rank.storing || rank.changed || bus.state !== 'up') return;
    const wait = rank.notBefore - bus.clock.now();
    if (wait > 0) {
      rank.timer ??= bus.clock.setTimer(wait, () => {
        rank.timer = undefined;
        snapshot(rank);
      });
      return;
    }
    rank.owes = false;
    rank.storing = true;
    rank.sinceSnapshot = 0;
    rank.notBefore = bus.clock.now() + pauseMs;
    snapshots += 1;
    const to = subject.kv(incarnation, rank.number);
    const parts = cut(rank);
    // In one go, so that no batch comes between the parts. The first clears the subject; a reader waits for the rest.
    const stored = parts.map((ops, index) => {
      const part = { index, of: parts.length };
      const id = `${incarnation}/${rank.number}/${snapshots}/${index}`;
      return bus.store(to, encodeKv({ seq: rank.seq, blockTokens, ops, part }), id, storeMs, { rollup: index === 0 });
    });
    const done = (failed: boolean): void => {
      rank.storing = false;
      if (failed) {
        counters.failed += 1;
        rank.failures += 1;
        rank.owes = true;
        rank.notBefore = bus.clock.now() + Math.min(longestPauseMs, pauseMs * 2 ** Math.min(rank.failures, 6));
      } else {
        counters.snapshots += 1;
        rank.failures = 0;
      }
      snapshot(rank);
    };
    Promise.allSettled(stored).then(
      (results) => done(results.some(({ status }) => status === 'rejected')),
      () => done(true),
    );
  }

  const stopListening = bus.onState((state) => {
    if (state !== 'up') return;
    // What was sent just before the connection broke may be lost without a trace.
    for (const rank of ranks.values()) {
      rank.owes ||= rank.seq > 0;
      rank.notBefore = Number.NEGATIVE_INFINITY;
      snapshot(rank);
    }
  });
  const stopServing = bus.serve(subject.query(address(component, incarnation, 'kv')), (data) => {
    for (const number of decodeKvQuestion(data)?.want ?? []) {
      const rank = ranks.get(number);
      if (rank === undefined) continue;
      rank.owes = true;
      snapshot(rank);
    }
    return encodeKvAnswer({ seqs: [...ranks.values()].map(({ number, seq }) => [number, seq]) });
  });

  return {
    counters,
    held: (rank) => ranks.get(rank)?.held.size ?? 0,
    seq: (rank) => ranks.get(rank)?.seq ?? 0,
    report(number, ops) {
      const rank = rankOf(number);
      for (const op of ops) {
        if (op.op === 'cleared') {
          if (rank.held.size === 0 && !rank.changed) continue;
          rank.held.clear();
          rank.pending = [];
          rank.pendingBlocks = 0;
          rank.cleared = true;
          rank.changed = true;
          continue;
        }
        const tier = kvTiers.indexOf(op.tier);
        const bit = 1 << tier;
        for (const hash of op.hashes) {
          const before = rank.held.get(hash) ?? 0;
          const after = op.op === 'stored' ? before | bit : before & ~bit;
          if (after === before) continue;
          if (after === 0) rank.held.delete(hash);
          else rank.held.set(hash, after);
          note(rank, op.op, tier, hash);
        }
      }
    },
    flush() {
      for (const rank of ranks.values()) flush(rank);
    },
    stop() {
      stopped = true;
      stopListening();
      stopServing();
      for (const { timer } of ranks.values()) timer?.();
    },
  };
}

/** Everything a rank holds, cut into parts; an empty one is a part too. */
function cut({ held }: Rank): KvOp[][] {
  const parts: KvOp[][] = [];
  let ops: KvOp[] = [];
  let room: number = kvLimits.blocks;
  for (const [tier, name] of kvTiers.entries()) {
    let hashes: bigint[] = [];
    const close = (): void => {
      if (hashes.length > 0) ops.push({ op: 'stored', tier: name, hashes: BigUint64Array.from(hashes) });
      hashes = [];
    };
    for (const [hash, tiers] of held) {
      if ((tiers & (1 << tier)) === 0) continue;
      hashes.push(hash);
      room -= 1;
      if (room > 0) continue;
      close();
      parts.push(ops);
      ops = [];
      room = kvLimits.blocks;
    }
    close();
  }
  if (ops.length > 0 || parts.length === 0) parts.push(ops);
  return parts;
}
