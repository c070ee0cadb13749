/** The registry bucket of the memory broker: entries that live as long as they are renewed. */
import type { KvEntry, Stop } from '../bus.js';
import type { Clock } from '../clock.js';

export interface Bucket {
  /** `lasting`: until it is removed. */
  put(key: string, value: Uint8Array, lasting: boolean): number;
  remove(key: string): void;
  /** Of the newest change. */
  readonly revision: number;
  has(key: string): boolean;
  /** First what is there, then every change. */
  watch(prefix: string, notify: (entry: KvEntry) => void): Stop;
}

export function createBucket(clock: Clock, leaseMs: number): Bucket {
  interface Leased {
    readonly value: Uint8Array;
    readonly revision: number;
    readonly cancel: Stop;
  }
  const entries = new Map<string, Leased>();
  const watches = new Set<{ readonly prefix: string; readonly notify: (entry: KvEntry) => void }>();
  let revision = 0;

  const notify = (entry: KvEntry): void => {
    for (const watch of [...watches]) if (entry.key.startsWith(watch.prefix)) watch.notify(entry);
  };
  const expire = (key: string): void => {
    if (entries.delete(key)) notify({ key, value: undefined, revision: ++revision, expired: true });
  };

  return {
    get revision() {
      return revision;
    },
    has: (key) => entries.has(key),
    put(key, value, lasting) {
      entries.get(key)?.cancel();
      revision += 1;
      entries.set(key, { value, revision, cancel: lasting ? () => {} : clock.setTimer(leaseMs, () => expire(key)) });
      notify({ key, value, revision });
      return revision;
    },
    remove(key) {
      entries.get(key)?.cancel();
      if (entries.delete(key)) notify({ key, value: undefined, revision: ++revision });
    },
    watch(prefix, listener) {
      const watch = { prefix, notify: listener };
      watches.add(watch);
      for (const [key, { value, revision: at }] of entries) {
        if (key.startsWith(prefix)) listener({ key, value, revision: at });
      }
      return () => watches.delete(watch);
    },
  };
}
