/** The work queue of the memory broker: each job to one taker, and to another when that one is silent. */
import type { Stored } from '../bus.js';
import type { Clock } from '../clock.js';
import { jobAckWaitMs } from '../streams.js';
import { matches } from '../subjects.js';
import type { Stream } from './stream.js';

interface Held {
  deliveries: number;
  /** Undefined: it waits. */
  release: (() => void) | undefined;
}

export interface Job extends Stored {
  readonly deliveries: number;
}

/** A taker, as the broker knows it. */
export interface Asker {
  readonly subject: string;
  /** Jobs that may still be handed to it. */
  wanted: number;
  /** False: its connection is broken. */
  reachable(): boolean;
  receive(job: Job): void;
}

export interface WorkQueue {
  readonly askers: Set<Asker>;
  /** Hands out what waits. */
  pump(): void;
  done(seq: number): void;
  working(seq: number): void;
  giveBack(seq: number): void;
  /** Undefined where nobody takes any. */
  backlog(subject: string): number | undefined;
}

export function createWorkQueue(stream: Stream, clock: Clock): WorkQueue {
  const held = new Map<number, Held>();
  const askers = new Set<Asker>();

  function* waiting(): Generator<Stored> {
    for (let at = stream.after(0); at !== undefined; at = stream.after(at.seq)) {
      if (held.get(at.seq)?.release === undefined) yield at;
    }
  }

  function hold(seq: number, entry: Held): void {
    entry.release?.();
    entry.release = clock.setTimer(jobAckWaitMs, () => {
      entry.release = undefined;
      pump();
    });
    held.set(seq, entry);
  }

  function pump(): void {
    for (const stored of waiting()) {
      const asker = [...askers].find(
        ({ subject, wanted, reachable }) => wanted > 0 && matches(subject, stored.subject) && reachable(),
      );
      if (asker === undefined) continue;
      const entry = held.get(stored.seq) ?? { deliveries: 0, release: undefined };
      entry.deliveries += 1;
      asker.wanted -= 1;
      hold(stored.seq, entry);
      asker.receive({ ...stored, deliveries: entry.deliveries });
    }
  }

  const free = (seq: number) => {
    const entry = held.get(seq);
    entry?.release?.();
    if (entry !== undefined) entry.release = undefined;
  };

  return {
    askers,
    pump,
    done(seq) {
      free(seq);
      held.delete(seq);
      stream.remove(seq);
    },
    working(seq) {
      const entry = held.get(seq);
      if (entry?.release !== undefined) hold(seq, entry);
    },
    giveBack(seq) {
      free(seq);
      pump();
    },
    backlog(subject) {
      if (![...askers].some((asker) => matches(asker.subject, subject))) return undefined;
      let count = 0;
      for (const stored of waiting()) if (matches(subject, stored.subject)) count += 1;
      return count;
    },
  };
}
