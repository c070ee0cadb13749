/**
 * Does the broker store what it is given? When its disk fills, nats-server goes on answering everything but what is to be stored, and does so
 * for good: space that comes back helps only a server that is started anew.
 *
 *     stores answered | disk          | what follows
 *     yes             | any           | nothing
 *     no, once        | any           | it is asked again
 *     no              | full          | said once: whoever frees space is helped then
 *     no              | has space     | the server is started anew
 */

export interface Stores {
  /** Rejects if nothing has been stored within the time that a sound broker never needs. */
  store(): Promise<unknown>;
  /** False: there is no broker to ask. */
  up(): boolean;
  /** Of the disk that the broker stores on. */
  freeBytes(): Promise<number>;
}

const defaultEveryMs = 5_000;
const unanswered = 2;
/** With less than this nats-server could not even be started. */
const leastFreeBytes = 16 * 1024 * 1024;

/** Until stopped. `full` and `anew` are called once each for as long as nothing is stored. */
export function watchStores(
  stores: Stores,
  full: (freeBytes: number) => void,
  anew: () => void,
  everyMs = defaultEveryMs,
): () => void {
  let stopped = false;
  let silent = 0;
  let said = false;
  let timer = setTimeout(round, everyMs);

  function round(): void {
    void look().finally(() => {
      if (!stopped) timer = setTimeout(round, everyMs);
    });
  }

  async function look(): Promise<void> {
    if (!stores.up()) return;
    const stored = await stores.store().then(
      () => true,
      () => false,
    );
    if (stopped || !stores.up()) return;
    silent = stored ? 0 : silent + 1;
    if (stored) said = false;
    if (silent < unanswered) return;
    const free = await stores.freeBytes().catch(() => Number.POSITIVE_INFINITY);
    if (stopped) return;
    if (free >= leastFreeBytes) {
      stopped = true;
      anew();
    } else if (!said) {
      said = true;
      full(free);
    }
  }

  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
