import type { Stop } from './bus.js';

/** The time the transport goes by; the simulator injects a virtual one. */
export interface Clock {
  /** Monotonic milliseconds. */
  now(): number;
  /** Wall clock, milliseconds since 1970: only for what people read. */
  wallTime(): number;
  /** Calls `fire` once after `ms`. The timer alone keeps no process alive. */
  setTimer(ms: number, fire: () => void): Stop;
}

export const realClock: Clock = {
  now: () => performance.now(),
  wallTime: () => Date.now(),
  setTimer(ms, fire) {
    const timer = setTimeout(fire, ms);
    timer.unref();
    return () => clearTimeout(timer);
  },
};
