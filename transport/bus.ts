/**
 * What the rest of dynact knows of a broker. Two implementations: `nats/` on JetStream and `memory/` in one
 * process; the same specs run against both. Everything above (outbox, mailboxes, registry, post) is written on this
 * interface alone, so the simulator can put a lossy network underneath.
 */

import type { Clock } from './clock.js';
import type { StreamName } from './subjects.js';

/** Ends what it came from; calling it twice is harmless. */
export type Stop = () => void;

export type BusState =
  /** Connected and JetStream answers. */
  | 'up'
  /** The broker is away: commands wait in the outbox, frames are lost, deadlines pause. */
  | 'down'
  /** `close` was called, or the credentials were refused for good. */
  | 'closed';

/** A stored message. `seq` is the stream's, not the sender's. */
export interface Stored {
  readonly subject: string;
  readonly seq: number;
  readonly data: Uint8Array;
  /** How long it had been stored when it was handed over, by the broker's clock: time frozen or queued counts. */
  readonly ageMs: number;
}

export interface KvEntry {
  readonly key: string;
  /** Undefined when the key was deleted or its lease ran out. */
  readonly value: Uint8Array | undefined;
  readonly revision: number;
  /** With an undefined value: nobody removed it, its lease ran out or the bucket was lost with the broker. */
  readonly expired?: boolean;
}

/** A job from the work queue. After `done` or `giveBack` the rest does nothing. */
export interface TakenJob extends Stored {
  /** How often it was handed out, this time included. */
  readonly deliveries: number;
  /** It leaves the queue. */
  done(): void;
  /** Nobody else gets it for `jobAckWaitMs` from now on. */
  working(): void;
  /** Somebody else may have it at once. */
  giveBack(): void;
}

export interface Taker {
  /** So many more jobs may come, whatever was wanted before; each that comes counts off one. */
  want(count: number): void;
  readonly stop: Stop;
}

export interface StoreOptions {
  /** This message replaces everything that its stream has on its subject. */
  readonly rollup?: boolean;
  /** Stored only if the last message on its subject has this number, 0 for none; otherwise rejects with NET_CONFLICT. */
  readonly after?: number;
}

export interface Bus {
  /** Every subject, stream and bucket of this bus belongs to it (`subjects.ts`). */
  readonly namespace: string;
  readonly clock: Clock;
  /** What happened and nobody was told: messages dropped while down, handlers that threw. For metrics. */
  readonly counters: { readonly dropped: number; readonly handlerErrors: number; readonly reconnects: number };
  readonly state: BusState;
  onState(listener: (state: BusState) => void): Stop;

  /** Core publish: at most once, no answer. Dropped and counted while the broker is down or the buffer is full. */
  send(subject: string, data: Uint8Array): void;
  /** Core subscription. The handler is synchronous and guarded: a throw is reported, never reaches the reader. */
  subscribe(subject: string, handler: (data: Uint8Array, subject: string) => void): Stop;

  /** Core request. Rejects with NET_TIMEOUT or NET_NO_RESPONDER. */
  request(subject: string, data: Uint8Array, timeoutMs: number): Promise<Uint8Array>;
  serve(subject: string, handler: (data: Uint8Array, subject: string) => Uint8Array | Promise<Uint8Array>): Stop;

  /**
   * JetStream publish: resolves with the stream sequence once stored. Rejects at once with NET_DOWN when the connection breaks
   * (the message may be stored), NET_NO_STREAM, NET_STREAM_FULL, NET_DENIED, NET_TOO_LARGE, NET_TIMEOUT. The same `msgId` within the duplicate window is stored once. */
  store(subject: string, data: Uint8Array, msgId: string, timeoutMs: number, options?: StoreOptions): Promise<number>;
  /**
   * Ordered read of one subject filter of a stream, from `from` on, without acks; survives broker restarts without a gap or a
   * repeat as long as the stream itself does. The handler is synchronous and guarded.
   */
  follow(stream: StreamName, filter: string, from: 'start' | 'new', handler: (message: Stored) => void): Promise<Stop>;

  /** The last message of every subject under a filter, as of now. Rejects with NET_DOWN, NET_DENIED, NET_NO_STREAM or NET_TIMEOUT. */
  latest(stream: StreamName, filter: string): Promise<Stored[]>;
  /** What `pick` makes of every message under a filter, oldest first, as of now; undefined: not wanted. Rejects as `latest` does. */
  read<T>(stream: StreamName, filter: string, pick: (message: Stored) => T | undefined): Promise<T[]>;

  /**
   * Takes jobs of one subject of JOBS, together with everybody else who does. Each goes to one taker, and to another if that one is silent
   * for `jobAckWaitMs`; it survives broker restarts. The handler is synchronous and guarded: a throw gives the job back.
   */
  take(subject: string, handler: (job: TakenJob) => void): Taker;
  /** Jobs of a subject that nobody has taken. Rejects with NET_NO_TAKER where nobody takes any, or as `latest` does. */
  backlog(subject: string): Promise<number>;

  /** REGISTRY bucket. `put` renews the lease of the bucket's ttl; what is `lasting` has none, and stays until it is removed. */
  put(key: string, value: Uint8Array, options?: { readonly lasting?: boolean }): Promise<number>;
  remove(key: string): Promise<void>;
  /** First every live entry under the prefix, then `ready`, then changes, expiry included. */
  watch(prefix: string, handler: (entry: KvEntry) => void): Promise<{ stop: Stop; ready: Promise<void> }>;

  /** Resolves when all that was sent before has reached the broker. */
  flush(): Promise<void>;
  /** Unsubscribes, flushes, closes. Idempotent. */
  close(): Promise<void>;
}
