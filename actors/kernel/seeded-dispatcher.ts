/**
 * One actor, one message, chosen by a number source: the same seed gives the same interleaving, another seed another
 * one. Nothing runs by itself; whoever drives it calls `step` or `drain`.
 */
import type { Dispatcher, Runnable } from './dispatcher.js';

export interface SeededDispatcher extends Dispatcher {
  /** Actors that have a turn coming. */
  readonly waiting: number;
  /** One turn of one waiting actor; false if there is none. */
  step(): boolean;
  /** Turns until none is waiting; throws after `limit`, for actors that feed each other for ever. */
  drain(limit?: number): number;
}

/** `random` picks in [0, 1); without it the actors take turns in the order of scheduling. */
export function seededDispatcher(random: () => number = () => 0): SeededDispatcher {
  const ready: Runnable[] = [];

  const step = (): boolean => {
    if (ready.length === 0) return false;
    const [actor] = ready.splice(Math.floor(random() * ready.length), 1) as [Runnable];
    if (actor.run(1)) ready.push(actor);
    return true;
  };

  return {
    get waiting() {
      return ready.length;
    },
    step,
    drain(limit = 1_000_000) {
      let turns = 0;
      while (step()) {
        if (++turns > limit) throw new RangeError(`still ${ready.length} actors busy after ${limit} turns`);
      }
      return turns;
    },
    schedule(actor) {
      ready.push(actor);
    },
    forget(actor) {
      const index = ready.indexOf(actor);
      if (index >= 0) ready.splice(index, 1);
    },
    close() {
      ready.length = 0;
    },
  };
}
