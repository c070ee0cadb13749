/**
 * The outbox: commands on their way to the broker. nats.js drops what is published while disconnected, so every command stays here
 * until the broker has confirmed it, and is sent again with the same message id until its deadline.
 *
 * Order. Commands of one lane (sender and mailbox) are sent in order, many at a time. Whatever a broken connection takes is
 * always the tail of what was sent, so sending the unconfirmed again in order keeps the order. A refusal in the middle (the stream
 * came into being between two commands) is the only way for a later one to be stored first: the earlier then gets a new,
 * higher `seq`, because readers drop what is behind. After any failure a lane sends one at a time until one succeeds.
 *
 * A broker that keeps mail in memory loses it when it dies. What was stored within the last two seconds is therefore sent once more when
 * the broker comes back, with its old id and number: a broker or a reader that has it drops it.
 */
import type { Bus, Stop } from './bus.js';
import { isNetError, NetError } from './errors.js';
import { watchMute } from './mute.js';
import { storedLately } from './stored-lately.js';

export interface OutboxOptions {
  /** Default 10,000. */
  readonly maxMessages?: number;
  /** Default 64 MiB. */
  readonly maxBytes?: number;
}

export interface Parcel {
  /** Sender and mailbox: parcels of one lane keep their order. */
  readonly lane: string;
  readonly subject: string;
  readonly id: string;
  /** From `nextSeq`; replaced if the parcel has to be overtaken. */
  readonly seq: number;
  /** The message as it is if it leaves at once. */
  readonly first: Uint8Array;
  /** Size as counted against the bound. */
  readonly bytes: number;
  readonly budgetMs: number;
  /** Sent ahead, as `<id>#<n>`; the same on every attempt. */
  readonly chunks: readonly Uint8Array[];
  /** The message as it is later, or under another number. */
  encode(seq: number, budgetMs: number): Uint8Array;
}

export interface Outbox {
  /** Numbers grow over all lanes, so that an idle lane need not be remembered. */
  nextSeq(): number;
  /** Resolves when stored. Rejects with NET_OUTBOX_FULL, NET_TIMEOUT, NET_REFUSED or NET_CLOSED. */
  put(parcel: Parcel): Promise<void>;
  readonly messages: number;
  readonly bytes: number;
  /** `repeated`: stored once more after the broker was away. */
  readonly counters: {
    readonly stored: number;
    readonly retried: number;
    readonly refused: number;
    readonly repeated: number;
  };
  /** Connected, and what is sent gets no answer: the broker stores nothing. */
  readonly mute: boolean;
  onMute(listener: (mute: boolean) => void): Stop;
  /** Rejects what is left with NET_CLOSED. */
  close(): void;
}

interface Entry {
  readonly parcel: Parcel;
  readonly deadline: number;
  readonly resolve: () => void;
  readonly reject: (error: NetError) => void;
  readonly putAt: number;
  seq: number;
  /** The last attempt was turned away for sure, so later ones may have been stored before it. */
  refused: boolean;
  /** Was stored before, and may have been lost with the broker's memory. */
  again: boolean;
}

interface Lane {
  readonly waiting: Entry[];
  readonly failed: Entry[];
  inFlight: number;
  highestStored: number;
  /** Sends many at a time. */
  open: boolean;
  failures: number;
  pausedUntil: number;
}

const window = 64;
const attemptMs = 5_000;
const sweepMs = 100;
/** A message that waited less than this says its time left well enough. */
const freshMs = 5;
const backoffMs = { least: 20, most: 1_000 } as const;

export function createOutbox(bus: Bus, options: OutboxOptions = {}): Outbox {
  const maxMessages = options.maxMessages ?? 10_000;
  const maxBytes = options.maxBytes ?? 64 * 1024 * 1024;
  const { clock } = bus;
  const lanes = new Map<string, Lane>();
  const counters = { stored: 0, retried: 0, refused: 0, repeated: 0 };
  const lately = storedLately<Entry>();
  const mute = watchMute(clock, () => bus.state === 'up');
  let messages = 0;
  let bytes = 0;
  let seq = 0;
  let closed = false;
  let sweeping: Stop | undefined;

  const stopListening = bus.onState((state) => {
    if (state === 'closed') close();
    else if (state === 'up') {
      repeat();
      for (const [key, lane] of lanes) pump(key, lane);
    }
  });

  /** Puts what was stored lately before what waits. */
  function repeat(): void {
    for (const entry of lately.take()) {
      entry.again = true;
      messages += 1;
      bytes += entry.parcel.bytes;
      const lane = laneOf(entry.parcel.lane);
      lane.open = false;
      lane.failed.push(entry);
    }
  }

  function laneOf(key: string): Lane {
    let lane = lanes.get(key);
    if (!lane) {
      lane = { waiting: [], failed: [], inFlight: 0, highestStored: 0, open: true, failures: 0, pausedUntil: 0 };
      lanes.set(key, lane);
    }
    return lane;
  }

  function finish(entry: Entry, error?: NetError): void {
    messages -= 1;
    bytes -= entry.parcel.bytes;
    if (entry.again) {
      // Its sender heard long ago that it was stored.
      if (!error) counters.repeated += 1;
    } else if (error) {
      counters.refused += 1;
      entry.reject(error);
    } else {
      counters.stored += 1;
      entry.resolve();
    }
  }

  function nextSeq(): number {
    seq += 1;
    return seq;
  }

  function pump(key: string, lane: Lane): void {
    if (lane.failed.length > 0 && lane.inFlight === 0) {
      lane.failed.sort((a, b) => a.seq - b.seq);
      let behind = false;
      for (const entry of lane.failed) {
        // Under a new number its reader would take it for a new command.
        if (entry.again) continue;
        behind ||= entry.refused || entry.seq < lane.highestStored;
        entry.refused = false;
        if (behind) entry.seq = nextSeq();
      }
      if (behind) for (const entry of lane.waiting) entry.seq = nextSeq();
      lane.waiting.unshift(...lane.failed.splice(0));
    }
    const held = lane.failed.length > 0;
    while (!held && lane.waiting.length > 0 && lane.inFlight < (lane.open ? window : 1)) {
      const now = clock.now();
      if (bus.state !== 'up' || now < lane.pausedUntil) break;
      const entry = lane.waiting.shift() as Entry;
      if (entry.deadline <= now) finish(entry, late(entry));
      else send(key, lane, entry, now);
    }
    if (lane.waiting.length > 0 || held) sweepLater();
    else if (lane.inFlight === 0) lanes.delete(key);
  }

  function send(key: string, lane: Lane, entry: Entry, now: number): void {
    const { parcel } = entry;
    const left = entry.deadline - now;
    const patience = Math.min(attemptMs, left);
    lane.inFlight += 1;
    mute.sent();
    const stored = parcel.chunks.map((chunk, n) => bus.store(parcel.subject, chunk, `${parcel.id}#${n}`, patience));
    const fresh = entry.seq === parcel.seq && now - entry.putAt < freshMs;
    const message = fresh ? parcel.first : parcel.encode(entry.seq, left);
    stored.push(bus.store(parcel.subject, message, parcel.id, patience));
    (stored.length === 1 ? (stored[0] as Promise<number>) : Promise.all(stored)).then(
      () => settle(key, lane, entry),
      (error: unknown) => settle(key, lane, entry, error),
    );
    // The other rejections of one parcel tell nothing new.
    if (stored.length > 1) for (const promise of stored) promise.catch(() => {});
  }

  function settle(key: string, lane: Lane, entry: Entry, error?: unknown): void {
    lane.inFlight -= 1;
    mute.settled(error === undefined || !isNetError(error) || !unanswered.has(error.code));
    if (closed) {
      finish(entry, error === undefined ? undefined : new NetError('NET_CLOSED', {}, error));
      return;
    }
    if (error === undefined) {
      lane.highestStored = Math.max(lane.highestStored, entry.seq);
      lane.open = lane.failed.length === 0;
      lane.failures = 0;
      finish(entry);
      lately.add(entry, entry.parcel.bytes, clock.now());
    } else if (!isNetError(error) || !sendAgain.has(error.code)) {
      finish(entry, new NetError('NET_REFUSED', { what: text(error) }, error));
    } else if (entry.deadline <= clock.now()) {
      finish(entry, late(entry, error));
    } else {
      lane.open = false;
      entry.refused = error.code === 'NET_NO_STREAM';
      lane.failed.push(entry);
      counters.retried += 1;
      lane.failures += 1;
      if (error.code !== 'NET_DOWN') {
        lane.pausedUntil =
          clock.now() + Math.min(backoffMs.most, backoffMs.least * 2 ** Math.min(lane.failures - 1, 6));
      }
    }
    pump(key, lane);
  }

  function sweepLater(): void {
    sweeping ??= clock.setTimer(sweepMs, sweep);
  }

  /** While anything waits: ends what is past its deadline and resumes paused lanes. */
  function sweep(): void {
    sweeping = undefined;
    const now = clock.now();
    for (const [key, lane] of lanes) {
      for (const queue of [lane.waiting, lane.failed]) {
        let kept = 0;
        for (const entry of queue) {
          if (entry.deadline <= now) finish(entry, late(entry));
          else queue[kept++] = entry;
        }
        queue.length = kept;
      }
      pump(key, lane);
    }
  }

  function close(): void {
    if (closed) return;
    closed = true;
    stopListening();
    mute.stop();
    sweeping?.();
    for (const lane of lanes.values()) {
      for (const entry of [...lane.failed, ...lane.waiting]) finish(entry, new NetError('NET_CLOSED'));
    }
    lanes.clear();
  }

  return {
    get messages() {
      return messages;
    },
    get bytes() {
      return bytes;
    },
    get mute() {
      return mute.now;
    },
    onMute: mute.onChange,
    counters,
    nextSeq,
    close,
    put(parcel) {
      if (closed || bus.state === 'closed') return Promise.reject(new NetError('NET_CLOSED'));
      if (messages >= maxMessages || bytes + parcel.bytes > maxBytes) {
        counters.refused += 1;
        return Promise.reject(new NetError('NET_OUTBOX_FULL', { count: messages, bytes }));
      }
      return new Promise((resolve, reject) => {
        messages += 1;
        bytes += parcel.bytes;
        const lane = laneOf(parcel.lane);
        const putAt = clock.now();
        const deadline = putAt + parcel.budgetMs;
        lane.waiting.push({ parcel, putAt, deadline, resolve, reject, seq: parcel.seq, refused: false, again: false });
        pump(parcel.lane, lane);
      });
    },
  };
}

const unanswered: ReadonlySet<string> = new Set(['NET_DOWN', 'NET_TIMEOUT', 'NET_CLOSED']);
const sendAgain: ReadonlySet<string> = new Set(['NET_DOWN', 'NET_TIMEOUT', 'NET_NO_STREAM']);

function late(entry: Entry, cause?: unknown): NetError {
  return new NetError('NET_TIMEOUT', { ms: Math.round(entry.parcel.budgetMs), what: entry.parcel.subject }, cause);
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
