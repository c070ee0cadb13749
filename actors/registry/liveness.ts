/**
 * Which workers are silent, and whose engine is wedged behind a live event loop (design 8.1). Pure, and without a clock.
 *
 * Silence is counted in looks of the gateway's own timer, a wedge in beats of the worker: whoever stands still, be it this gateway, the
 * worker or the whole machine, counts nothing meanwhile. And a look counts only while the gateway hears its own beat through the
 * broker, so that neither a broker's freeze nor the time after it looks like the silence of workers.
 */
import { countStandstill, type Standstill } from './standstill.js';

export type Suspicion = 'WORKER_SILENT' | 'ENGINE_WEDGED';

export interface LivenessLimits {
  /** A worker that says nothing for longer is suspect. */
  readonly silentMs: number;
  /** So is one whose engine takes no step for as long while it has work; never less than three times its longest step so far. */
  readonly stuckMs: number;
}

/** How often workers beat, and how often the gateway looks. */
export const beatMs = 250;
/** The same while there is nothing to do: an idle node costs next to nothing, and who is asked for something is known to be there or not within the accept deadline. */
export const idleBeatMs = 1_000;
/** An own beat comes back within a look; after two without, or one of the long ones, the broker is late, or away. */
const echoLooks = { short: 2, long: 1 };
/** A step may take this many times as long as the longest one so far. */
const patience = 3;
/** A wedge that ended after all counts as a step this long at most. */
const longestMs = 60_000;

interface Watched {
  readonly stuckMs: number;
  /** Looks of `beatMs` since anything was heard of it. */
  unheard: number;
  /** Something was heard since the last look. */
  fresh: boolean;
  /** When it says something next at the latest, as it has said itself. */
  everyMs: number;
  readonly standstill: ReturnType<typeof countStandstill>;
  suspicion: Suspicion | undefined;
}

export interface Beat {
  readonly incarnation: string;
  readonly steps: number;
  /** Slots with work for the engine, and requests that wait for a slot. */
  readonly queued: number;
  /** The next beat comes within this time. */
  readonly everyMs: number;
}

export interface Liveness {
  /** From now on this worker is watched. */
  add(incarnation: string, stuckMs: number): void;
  forget(incarnation: string): void;
  /** Returns what changed by this beat: a new suspicion, or `cleared`. */
  beat(beat: Beat): Suspicion | 'cleared' | undefined;
  /** It sent a frame: a sign of life like a beat. True if that ended a suspicion of silence. */
  heard(incarnation: string): boolean;
  /** The gateway's own beat came back. */
  echo(): void;
  /** After `afterMs`, `beatMs` or `idleBeatMs`: workers that have become suspect by silence. */
  look(afterMs?: number): string[];
  /** All workers beat slowly, and nobody is suspect: one may look as seldom. */
  readonly idle: boolean;
}

export function createLiveness({ silentMs }: Pick<LivenessLimits, 'silentMs'>): Liveness {
  const watched = new Map<string, Watched>();
  const silentLooks = Math.ceil(silentMs / beatMs);
  let unechoed = 0;

  /** One that beats slowly is silent for that much longer before it is missed. */
  const allowed = ({ everyMs }: Watched) => silentLooks + Math.ceil(everyMs / beatMs) - 1;
  const hear = (worker: Watched) => {
    worker.unheard = 0;
    worker.fresh = true;
  };

  function wedged({ stuckMs }: Watched, { reports, longest }: Standstill): boolean {
    return reports * beatMs >= Math.max(stuckMs, patience * Math.min(longest * beatMs, longestMs));
  }

  return {
    add(incarnation, stuckMs) {
      if (watched.has(incarnation)) return;
      const standstill = countStandstill();
      const news = { unheard: 0, fresh: true, everyMs: beatMs, suspicion: undefined };
      watched.set(incarnation, { stuckMs, standstill, ...news });
    },
    forget: (incarnation) => void watched.delete(incarnation),
    beat({ incarnation, steps, queued, everyMs }) {
      const worker = watched.get(incarnation);
      if (worker === undefined) return undefined;
      const before = worker.suspicion;
      hear(worker);
      worker.everyMs = Math.min(everyMs, idleBeatMs);
      worker.suspicion = wedged(worker, worker.standstill(steps, queued > 0)) ? 'ENGINE_WEDGED' : undefined;
      if (worker.suspicion === before) return undefined;
      return worker.suspicion ?? 'cleared';
    },
    heard(incarnation) {
      const worker = watched.get(incarnation);
      if (worker === undefined) return false;
      hear(worker);
      if (worker.suspicion !== 'WORKER_SILENT') return false;
      worker.suspicion = undefined;
      return true;
    },
    echo() {
      unechoed = 0;
    },
    look(afterMs = beatMs) {
      const silent: string[] = [];
      unechoed++;
      const deaf = unechoed > (afterMs > beatMs ? echoLooks.long : echoLooks.short);
      for (const [incarnation, worker] of watched) {
        // Heard of since the last look, it has been silent for less than what lies between.
        worker.unheard = deaf ? 0 : worker.unheard + (worker.fresh ? 1 : afterMs / beatMs);
        worker.fresh = false;
        if (worker.unheard <= allowed(worker) || worker.suspicion !== undefined) continue;
        worker.suspicion = 'WORKER_SILENT';
        silent.push(incarnation);
      }
      return silent;
    },
    get idle() {
      for (const { everyMs, suspicion } of watched.values()) {
        if (everyMs <= beatMs || suspicion !== undefined) return false;
      }
      return true;
    },
  };
}
