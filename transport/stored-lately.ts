/**
 * The last commands that were stored. A broker that keeps mail in memory takes with it what its readers had not got yet; its return is
 * answered with these, under their old ids and numbers, so that whoever has one already drops it.
 */

const keptMs = 2_000;
const kept = { messages: 4_096, bytes: 16 * 1024 * 1024 } as const;

interface Item<T> {
  readonly what: T;
  readonly bytes: number;
  readonly at: number;
}

export interface StoredLately<T> {
  /** Forgets what was stored 2 s before `now`, and the oldest beyond 4,096 or 16 MiB. */
  add(what: T, bytes: number, now: number): void;
  /** In the order of storing; forgets them. */
  take(): T[];
}

export function storedLately<T>(): StoredLately<T> {
  let items: Item<T>[] = [];
  let first = 0;
  let bytes = 0;
  return {
    add(what, size, now) {
      items.push({ what, bytes: size, at: now });
      bytes += size;
      for (;;) {
        const oldest = items[first] as Item<T>;
        const over = items.length - first > kept.messages || bytes > kept.bytes;
        if (!over && oldest.at >= now - keptMs) break;
        bytes -= oldest.bytes;
        first += 1;
        if (first === items.length) break;
      }
      if (first * 2 > items.length) {
        items = items.slice(first);
        first = 0;
      }
    },
    take() {
      const taken = items.slice(first).map(({ what }) => what);
      items = [];
      first = 0;
      bytes = 0;
      return taken;
    },
  };
}
