/** What supervision needs of the world; an actor kernel's World is one. */
export interface Clock {
  /** Monotonic milliseconds. */
  now(): number;
  /** [0, 1): spreads restarts that would otherwise come together. */
  random(): number;
  /** Returns what cancels it. */
  setTimer(ms: number, fire: () => void): () => void;
}

/** Node fires a timer with a longer delay after 1 ms. */
const longestTimerMs = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => performance.now(),
  random: () => Math.random(),
  setTimer(ms, fire) {
    const timer = setTimeout(fire, Math.min(ms, longestTimerMs));
    return () => clearTimeout(timer);
  },
};
