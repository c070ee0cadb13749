/**
 * A broker that is connected and stores nothing: nats-server takes what is published to a full disk and never answers. Silence while
 * commands wait for their answers tells it; any answer ends it. While nothing is sent nothing can be heard, so after a while it is taken to
 * store again, and the next command finds out.
 */
import type { Stop } from './bus.js';
import type { Clock } from './clock.js';

export interface Mute {
  readonly now: boolean;
  sent(): void;
  /** One that was sent is over; `answered`: the broker has said something, be it a refusal. */
  settled(answered: boolean): void;
  onChange(listener: (mute: boolean) => void): Stop;
  stop(): void;
}

const silentMs = 1_500;
const forgetMs = 5_000;
/** A timer that is later than this was held up with everything else: what has come meanwhile is not read yet. */
const lateMs = 250;

/** `up`: whether the connection is; while it is not, the bus says so itself. */
export function watchMute(clock: Clock, up: () => boolean): Mute {
  const listeners = new Set<(mute: boolean) => void>();
  let mute = false;
  let inFlight = 0;
  let silentSince = 0;
  /** An answer to something that was sent since the last one. */
  let owed = false;
  let timer: Stop | undefined;

  function become(next: boolean): void {
    if (mute === next) return;
    mute = next;
    for (const listener of [...listeners]) listener(next);
  }

  function lookAfter(ms: number): void {
    const due = clock.now() + ms;
    timer = clock.setTimer(ms, () => look(due));
  }

  function look(due: number): void {
    timer = undefined;
    const now = clock.now();
    if (now > due + lateMs) silentSince = now;
    const silent = now - silentSince;
    if (!up()) become(false);
    else if (inFlight > 0 && silent >= silentMs) become(true);
    else if (inFlight === 0 && silent >= forgetMs) {
      owed = false;
      become(false);
    }
    if (inFlight > 0 || mute) lookAfter(mute ? silentMs : Math.max(1, silentMs - silent));
  }

  return {
    get now() {
      return mute;
    },
    sent() {
      // A command that is sent again and again is one silence.
      if (!owed) silentSince = clock.now();
      owed = true;
      inFlight++;
      if (timer === undefined) lookAfter(silentMs);
    },
    settled(answered) {
      inFlight--;
      if (!answered) return;
      silentSince = clock.now();
      owed = inFlight > 0;
      become(false);
    },
    onChange(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    stop() {
      timer?.();
      timer = undefined;
    },
  };
}
