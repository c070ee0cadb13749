/** What is read through `follow`: what a stream holds, and the entries of the bucket. */
import type { Bus, KvEntry, Stop, Stored } from '../bus.js';
import { NetError } from '../errors.js';
import type { Subjects } from '../subjects.js';
import { type FollowContext, type Followed, follow } from './follow.js';

const readMs = 10_000;

/**
 * What is stored under a filter as of now, as far as `pick` wants it: everything, oldest first, or the last message of every subject.
 * Rejects with NET_TIMEOUT, or with what keeps a reader from being made.
 */
export async function storedIn<T>(
  context: FollowContext,
  stream: string,
  filter: string,
  from: 'start' | 'latest',
  pick: (message: Stored) => T | undefined,
): Promise<T[]> {
  const found: T[] = [];
  let caughtUp: () => void = () => {};
  let timer: NodeJS.Timeout | undefined;
  const done = new Promise<void>((resolve, reject) => {
    caughtUp = resolve;
    timer = setTimeout(() => reject(new NetError('NET_TIMEOUT', { ms: readMs, what: filter })), readMs);
  });
  const reading = follow(context, {
    stream,
    filter,
    from,
    onMessage(m) {
      const picked = pick({ subject: m.subject, seq: m.seq, data: m.data, ageMs: m.ageMs });
      if (picked !== undefined) found.push(picked);
    },
    onReset: () => void found.splice(0),
    onCaughtUp: caughtUp,
  });
  try {
    await Promise.all([reading, done]);
    return found;
  } finally {
    clearTimeout(timer);
    reading.then(
      (stop) => stop(),
      () => {},
    );
  }
}

/** `ready` resolves when everything that was there has been told. */
export async function watchKeys(
  context: FollowContext,
  subjects: Subjects,
  prefix: string,
  handler: Parameters<Bus['watch']>[1],
): Promise<{ readonly stop: Stop; readonly ready: Promise<void> }> {
  const live = new Set<string>();
  let stale: Set<string> | undefined;
  let markReady: () => void = () => {};
  const ready = new Promise<void>((resolve) => {
    markReady = resolve;
  });
  const stop = await follow(context, {
    stream: subjects.bucketStream,
    filter: subjects.key(prefix),
    from: 'latest',
    onMessage(message) {
      const entry = entryOf(message, subjects);
      stale?.delete(entry.key);
      if (entry.value) live.add(entry.key);
      else live.delete(entry.key);
      handler(entry);
    },
    // The bucket was lost with the broker and made anew: what does not come back is gone.
    onReset() {
      stale = new Set(live);
    },
    onCaughtUp() {
      const missing = stale;
      stale = undefined;
      for (const key of missing ?? []) {
        live.delete(key);
        try {
          handler({ key, value: undefined, revision: 0, expired: true });
        } catch (error) {
          context.handlerFailed();
          context.report('watch', error);
        }
      }
      markReady();
    },
  });
  return { stop, ready };
}

function entryOf(message: Followed, subjects: Subjects): KvEntry {
  const key = subjects.keyOf(message.subject);
  const revision = message.seq;
  const h = message.headers();
  if (h?.has('Nats-Marker-Reason')) {
    return { key, value: undefined, revision, expired: h.get('Nats-Marker-Reason') === 'MaxAge' };
  }
  const operation = h?.get('KV-Operation');
  if (operation === 'DEL' || operation === 'PURGE') return { key, value: undefined, revision };
  return { key, value: message.data, revision };
}
