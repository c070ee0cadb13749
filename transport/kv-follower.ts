/**
 * A router's side of the KV events: follows one worker and tells, per rank, exactly what the worker held after some batch of its own, or
 * nothing. A gap, a fault or an unfinished snapshot never makes it guess: the rank is cleared, and the worker is asked for a snapshot,
 * which reaches every router in the same stream.
 */
import { address, type Component } from './address.js';
import type { Bus, Stop, Stored } from './bus.js';
import { decodeKv, decodeKvAnswer, encodeKvQuestion, type KvFault, type KvMessage, type KvOp } from './kv-events.js';
import { subjects } from './subjects.js';

export interface KvFollowed {
  readonly component: Component;
  readonly incarnation: string;
  /** Of its registry entry: reports over blocks of another size are refused. */
  readonly blockTokens: number;
}

export interface KvSink {
  /** In order; `cleared` comes first where a snapshot replaces what was told. Must not throw. */
  change(rank: number, ops: readonly KvOp[]): void;
  /** A rank's reports are refused, and its blocks were cleared, until a whole snapshot is right. */
  quarantined(rank: number, fault: KvFault): void;
}

export interface KvFollowerCounters {
  readonly batches: number;
  readonly blocks: number;
  readonly snapshots: number;
  /** Repeated or out of date. */
  readonly duplicates: number;
  readonly gaps: number;
  readonly faults: number;
  readonly asked: number;
  /** Ranks beyond the bound, whose reports are dropped. */
  readonly excessRanks: number;
}

/** `new`: nothing heard. `live`: what was told is what the worker held after batch `seq`. Else nothing is told of the rank. */
export type KvRankState = 'new' | 'live' | 'lost' | 'quarantined';

export interface KvFollower {
  readonly counters: KvFollowerCounters;
  /** Undefined: nothing was heard of this rank. */
  rank(rank: number): { readonly state: KvRankState; readonly seq: number } | undefined;
  /** Ends it, without clearing. */
  stop: Stop;
}

interface Rank {
  readonly number: number;
  state: KvRankState;
  seq: number;
  /** Parts of a snapshot that has begun. */
  parts: KvMessage[];
  /** Batches heard while lost: they may continue the snapshot. */
  ahead: KvMessage[];
}

const mostRanks = 1_024;
/** Batches kept while a snapshot is awaited; with more, the next snapshot is newer than all of them. */
const mostAhead = 256;
const askMs = { timeout: 2_000, first: 200, most: 10_000 } as const;
/** How often a worker is asked where it is: the loss of a last batch shows in nothing else. */
const checkMs = 10_000;
const graceMs = 1_000;

export function followKv(bus: Bus, worker: KvFollowed, sink: KvSink): KvFollower {
  const { component, incarnation, blockTokens } = worker;
  const subject = subjects(bus.namespace);
  const asked = subject.query(address(component, incarnation, 'kv'));
  const counters = { batches: 0, blocks: 0, snapshots: 0, duplicates: 0, gaps: 0, faults: 0, asked: 0, excessRanks: 0 };
  const ranks = new Map<number, Rank>();
  let stopped = false;
  let stopReading: Stop | undefined;
  let timer: Stop | undefined;
  let patience: number = askMs.first;

  function rankOf(number: number): Rank | undefined {
    let rank = ranks.get(number);
    if (rank === undefined && ranks.size < mostRanks) {
      rank = { number, state: 'new', seq: 0, parts: [], ahead: [] };
      ranks.set(number, rank);
    }
    return rank;
  }

  function receive({ subject: from, data }: Stored): void {
    if (stopped) return;
    const number = Number(from.slice(from.lastIndexOf('.') + 1));
    const rank = Number.isSafeInteger(number) && number >= 0 ? rankOf(number) : undefined;
    if (rank === undefined) {
      counters.excessRanks += 1;
      return;
    }
    const message = decodeKv(data, blockTokens);
    if ('code' in message) refuse(rank, message);
    else if (message.part === undefined) batch(rank, message);
    else part(rank, message);
  }

  function clear(rank: Rank, state: 'lost' | 'quarantined'): void {
    const before = rank.state;
    rank.state = state;
    rank.parts = [];
    rank.ahead = [];
    if (before === 'live') sink.change(rank.number, [{ op: 'cleared' }]);
    // One that was out already is being asked for, more and more patiently.
    if (before === 'live' || before === 'new') {
      patience = askMs.first;
      schedule(0);
    }
  }

  function refuse(rank: Rank, fault: KvFault): void {
    counters.faults += 1;
    const known = rank.state === 'quarantined';
    clear(rank, 'quarantined');
    if (!known) sink.quarantined(rank.number, fault);
  }

  function apply(rank: Rank, { seq, ops }: KvMessage): void {
    counters.batches += 1;
    for (const op of ops) if (op.op !== 'cleared') counters.blocks += op.hashes.length;
    rank.state = 'live';
    rank.seq = seq;
    sink.change(rank.number, ops);
  }

  function batch(rank: Rank, message: KvMessage): void {
    const { seq } = message;
    if (rank.state === 'quarantined') return;
    if (rank.state === 'lost') {
      if (rank.ahead.length < mostAhead) rank.ahead.push(message);
      return;
    }
    if (seq <= rank.seq) counters.duplicates += 1;
    else if (seq === rank.seq + 1) apply(rank, message);
    else {
      counters.gaps += 1;
      clear(rank, 'lost');
      rank.ahead.push(message);
    }
  }

  function part(rank: Rank, message: KvMessage): void {
    const { index, of } = message.part as NonNullable<KvMessage['part']>;
    if (rank.state === 'live' && message.seq <= rank.seq) {
      if (message.seq < rank.seq) counters.duplicates += 1;
      return;
    }
    if (index === 0) rank.parts = [];
    const first = rank.parts[0];
    const follows =
      index === rank.parts.length && (first === undefined || (first.seq === message.seq && first.part?.of === of));
    if (!follows) {
      // A part is missing: this snapshot is worth nothing.
      rank.parts = [];
      return;
    }
    rank.parts.push(message);
    if (rank.parts.length === of) adopt(rank, rank.parts);
  }

  function adopt(rank: Rank, parts: readonly KvMessage[]): void {
    const { seq } = parts[0] as KvMessage;
    const ahead = rank.ahead.sort((a, b) => a.seq - b.seq);
    rank.parts = [];
    rank.ahead = [];
    rank.state = 'live';
    rank.seq = seq;
    counters.snapshots += 1;
    sink.change(rank.number, [{ op: 'cleared' }, ...parts.flatMap(({ ops }) => ops)]);
    for (const message of ahead) batch(rank, message);
  }

  const missing = () => [...ranks.values()].filter(({ state }) => state !== 'live').map(({ number }) => number);

  function schedule(ms: number): void {
    timer?.();
    timer = stopped ? undefined : bus.clock.setTimer(ms, ask);
  }

  /** One question at a time: for snapshots while any rank is not live, else where the worker is. */
  function ask(): void {
    timer = undefined;
    const want = missing();
    const next = (): void => {
      if (stopped || timer !== undefined) return;
      if (missing().length === 0) {
        patience = askMs.first;
        schedule(checkMs);
      } else {
        schedule(patience);
        patience = Math.min(askMs.most, patience * 2);
      }
    };
    if (bus.state !== 'up') {
      next();
      return;
    }
    if (want.length > 0) counters.asked += 1;
    bus.request(asked, encodeKvQuestion({ want }), askMs.timeout).then(
      (data) => {
        const seqs = stopped ? undefined : decodeKvAnswer(data)?.seqs;
        if (seqs !== undefined && want.length === 0) compare(seqs);
        else next();
      },
      // Gone, or not there yet: whoever watches the registry ends this.
      next,
    );
  }

  /** What the worker said it had sent must be here a moment later. */
  function compare(seqs: readonly (readonly [rank: number, seq: number])[]): void {
    timer?.();
    timer = bus.clock.setTimer(graceMs, () => {
      timer = undefined;
      let behind = false;
      for (const [number, seq] of seqs) {
        const rank = seq > 0 ? rankOf(number) : undefined;
        if (rank === undefined || rank.state === 'quarantined' || rank.seq >= seq) continue;
        behind = true;
        counters.gaps += 1;
        clear(rank, 'lost');
      }
      if (!behind) schedule(checkMs);
    });
  }

  function read(): void {
    bus.follow('KV', subject.kv(incarnation), 'start', receive).then(
      (stop) => {
        if (stopped) stop();
        else stopReading = stop;
      },
      () => {
        if (!stopped) bus.clock.setTimer(askMs.first, () => !stopped && read());
      },
    );
  }
  read();
  schedule(graceMs);

  return {
    counters,
    rank(number) {
      const rank = ranks.get(number);
      return rank && { state: rank.state, seq: rank.seq };
    },
    stop() {
      stopped = true;
      timer?.();
      stopReading?.();
    },
  };
}
