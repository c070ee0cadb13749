/**
 * Kills what stays silent (design 8.1): a process that is frozen, and one whose engine is wedged behind a live event loop.
 *
 * Neither is measured with a clock. Silence is counted in ticks of this process's own timer, a wedge in reports of the child: whoever
 * stands still, be it this process, the child or the whole machine, counts nothing meanwhile. So a thaw never looks like a death.
 */
import { countStandstill } from '../actors/index.js';
import { type FromChild, factsEveryMs } from './ipc.js';

export interface Watchdog {
  /** From now on silence counts. What takes long to start is not silent: it has a start deadline. */
  start(): void;
  heard(message: FromChild): void;
  stop(): void;
}

export interface WatchLimits {
  readonly silentMs: number;
  readonly stuckMs: number;
}

/** Calls `dead` once, with the reason for people. */
export function watchChild({ silentMs, stuckMs }: WatchLimits, dead: (why: string) => void): Watchdog {
  let timer: NodeJS.Timeout | undefined;
  let unheard = 0;
  const standstill = countStandstill();
  /** Processor time of the child when its engine took its last step. */
  let spentMs = 0;
  const end = (why: string) => {
    if (timer === undefined) return;
    stop();
    dead(why);
  };
  const stop = () => {
    clearInterval(timer);
    timer = undefined;
  };
  return {
    start() {
      timer = setInterval(() => {
        unheard++;
        if (unheard * factsEveryMs >= silentMs) end(`silent for ${silentMs} ms`);
      }, factsEveryMs);
      timer.unref();
    },
    heard(message) {
      unheard = 0;
      if (message.type !== 'facts') return;
      const { steps, queued } = message.facts;
      // Who has no engine, has work in line without being stuck.
      if (typeof steps !== 'number') return;
      const { reports, longest } = standstill(steps, typeof queued === 'number' && queued > 0);
      if (reports === 0) spentMs = message.cpuMs;
      const limit = Math.max(Math.ceil(stuckMs / factsEveryMs), patience * longest);
      if (reports < limit) return;
      const stillMs = reports * factsEveryMs;
      const computes = message.cpuMs - spentMs >= busyShare * stillMs;
      if (computes && reports < computingPatience * limit) return;
      end(`the engine took no step for ${stillMs} ms with work queued`);
    },
    stop,
  };
}

/** A step may take this many times as long as the longest one so far: a large model on a slow machine is not wedged. */
const patience = 4;
/** What a computing engine takes of a core at least; one that waits for a lock, or for a step that never comes, takes next to nothing. */
const busyShare = 0.5;
/**
 * An engine that computes may take this many times as long: the first chunk of a large model has no step before it to compare with. An
 * engine in an endless loop is found only then.
 */
const computingPatience = 6;
