/**
 * What a process's actors are told and do, on the tape: one record for each turn of its event loop (actors/tape/turn.ts). Sent like any frame,
 * never waited for: a record that gets lost is a hole, which its number names.
 */
import { encodeTurn, type RawEntry, type Tape } from '../../actors/index.js';
import { type Bus, type Component, subjects } from '../../transport/index.js';
import { packageVersion } from '../package-root.js';

/** As large as a record may be: what the broker takes in one piece, less its frame. */
const recordBytes = 1024 * 1024 - 4_096;
/** A turn that is longer is written in parts. */
const turnEntries = 512;

export interface TurnsOnTape extends Tape {
  readonly counters: { readonly records: number; readonly lost: number };
  /** Writes what is left. */
  stop(): void;
}

export interface TurnsOptions {
  readonly component: Component;
  readonly incarnation: string;
  /** Whether prompts and tokens may be written down. */
  readonly content: boolean;
  readonly warn: (facts: Readonly<Record<string, unknown>>, message: string) => void;
}

export function openTurns(bus: Bus, { component, incarnation, content, warn }: TurnsOptions): TurnsOnTape {
  const subject = subjects(bus.namespace).turns(component, incarnation);
  const counters = { records: 0, lost: 0 };
  let entries: RawEntry[] = [];

  function write(some: readonly RawEntry[]): void {
    counters.records++;
    try {
      const bytes = encodeTurn(incarnation, counters.records, bus.clock.wallTime(), some);
      if (bytes.length > recordBytes && some.length > 1) {
        // The number is taken by the first part.
        counters.records--;
        write(some.slice(0, some.length >>> 1));
        write(some.slice(some.length >>> 1));
        return;
      }
      const before = bus.counters.dropped;
      if (bytes.length <= recordBytes) bus.send(subject, bytes);
      if (bytes.length > recordBytes || bus.counters.dropped > before) counters.lost++;
    } catch (error) {
      // People miss a record; no request may.
      counters.lost++;
      warn({ error: error instanceof Error ? error.message : String(error) }, 'a turn is not on the tape');
    }
  }

  function flush(): void {
    const some = entries;
    entries = [];
    if (some.length > 0) write(some);
  }

  return {
    code: packageVersion(),
    content,
    counters,
    add(entry) {
      // Microtasks run when the turn of the actors is over.
      if (entries.length === 0) queueMicrotask(flush);
      else if (entries.length >= turnEntries) write(entries.splice(0));
      entries.push(entry);
    },
    failed(actor, error) {
      warn({ actor, error: error instanceof Error ? error.message : String(error) }, 'a delivery is not on the tape');
    },
    stop: flush,
  };
}
