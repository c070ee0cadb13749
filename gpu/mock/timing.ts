/** How long an iteration of the mock engine takes: the polynomials of Dynamo's mocker. */

/** Milliseconds to prefill a chunk of `tokens` that no cache holds. */
export function prefillMs(tokens: number): number {
  return tokens === 0 ? 0 : 4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142;
}

/** Milliseconds of one decode step when the fraction `active` (0 … 1) of the KV blocks is in use. */
export function decodeMs(active: number): number {
  return -25.74 * active * active + 54.01 * active + 5.74;
}

/** The engine's only door to time, so that the simulator can bring its own. */
export interface EngineClock {
  /** Milliseconds from any origin; never goes back. */
  now(): number;
  /** Calls `run` once, `ms` or more from now. Returns what undoes it. */
  setTimer(ms: number, run: () => void): () => void;
  /** Calls `run` once, after the event loop had a turn for everybody else. */
  yield(run: () => void): () => void;
}

export const systemClock: EngineClock = {
  now: () => performance.now(),
  setTimer(ms, run) {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  },
  yield(run) {
    const immediate = setImmediate(run);
    return () => clearImmediate(immediate);
  },
};
