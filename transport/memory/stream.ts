/** One stream of the memory broker: what JetStream does with a stored message, without the wire. */
import type { Stored, StoreOptions } from '../bus.js';
import type { Clock } from '../clock.js';
import { NetError } from '../errors.js';
import type { StreamPlan } from '../streams.js';
import { matches, type StreamName } from '../subjects.js';

interface Kept extends Omit<Stored, 'ageMs'> {
  readonly storedAt: number;
}

export interface Stream {
  readonly name: StreamName;
  readonly lastSeq: number;
  readonly inMemory: boolean;
  /** Told of each message that is stored. */
  readonly readers: Set<(subject: string, seq: number) => void>;
  covers(subject: string): boolean;
  /** Its sequence number, also of a repeat within the duplicate window; or why it was not stored. */
  append(subject: string, data: Uint8Array, msgId?: string, options?: StoreOptions): number | NetError;
  /** The first message after `seq`, whatever its subject. */
  after(seq: number): Stored | undefined;
  /** In order. */
  all(filter: string): Stored[];
  /** The newest message of each subject under a filter. */
  latest(filter: string): Stored[];
  /** It is gone before its time. */
  remove(seq: number): void;
  /** What a crash of the broker takes with it. Numbers go on. */
  forget(): void;
}

export function createStream(
  name: StreamName,
  filters: readonly string[],
  plan: StreamPlan,
  maxBytes: number,
  clock: Clock,
): Stream {
  let messages: Kept[] = [];
  const ids = new Map<string, { readonly seq: number; readonly at: number }>();
  let lastSeq = 0;
  let bytes = 0;

  const shown = ({ subject, seq, data, storedAt }: Kept): Stored => ({
    subject,
    seq,
    data,
    ageMs: clock.now() - storedAt,
  });

  function shed(extra: number): void {
    const oldest = clock.now() - plan.maxAgeMs;
    let gone = 0;
    for (const message of messages) {
      const tooMuch = plan.discard === 'old' && bytes + extra > maxBytes;
      if (message.storedAt >= oldest && !tooMuch) break;
      bytes -= message.data.length;
      gone += 1;
    }
    if (gone > 0) messages.splice(0, gone);
    const window = clock.now() - plan.duplicateWindowMs;
    for (const [id, { at }] of ids) {
      if (at >= window) break;
      ids.delete(id);
    }
  }

  function drop(which: (message: Kept) => boolean): void {
    messages = messages.filter((message) => !which(message));
    bytes = messages.reduce((sum, message) => sum + message.data.length, 0);
  }

  return {
    name,
    inMemory: plan.storage === 'memory',
    readers: new Set(),
    get lastSeq() {
      return lastSeq;
    },
    covers: (subject) => filters.some((filter) => matches(filter, subject)),
    append(subject, data, msgId, { rollup, after } = {}) {
      if (after !== undefined) {
        const last = messages.findLast((message) => message.subject === subject)?.seq ?? 0;
        if (last !== after) return new NetError('NET_CONFLICT', { what: subject });
      }
      shed(data.length);
      const known = msgId === undefined ? undefined : ids.get(msgId);
      if (known) return known.seq;
      if (bytes + data.length > maxBytes) return new NetError('NET_STREAM_FULL', { what: name });
      if (rollup === true) drop((message) => message.subject === subject);
      lastSeq += 1;
      bytes += data.length;
      messages.push({ subject, seq: lastSeq, data, storedAt: clock.now() });
      if (msgId !== undefined) ids.set(msgId, { seq: lastSeq, at: clock.now() });
      return lastSeq;
    },
    after(seq) {
      shed(0);
      const found = firstAfter(messages, seq);
      return found && shown(found);
    },
    all(filter) {
      shed(0);
      return messages.filter(({ subject }) => matches(filter, subject)).map(shown);
    },
    latest(filter) {
      shed(0);
      const last = new Map<string, Kept>();
      for (const kept of messages) if (matches(filter, kept.subject)) last.set(kept.subject, kept);
      return [...last.values()].map(shown);
    },
    remove: (seq) => drop((message) => message.seq === seq),
    forget() {
      drop(() => true);
      ids.clear();
    },
  };
}

/** Messages are in order. */
function firstAfter(messages: readonly Kept[], seq: number): Kept | undefined {
  let low = 0;
  let high = messages.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((messages[middle] as Kept).seq > seq) high = middle;
    else low = middle + 1;
  }
  return messages[low];
}
