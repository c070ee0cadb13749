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
/** An own beat comes back within a look; after two without, the broker is late, or away. */
const echoLooks = 2;
/** A step may take this many times as long as the longest one so far. */
const patience = 3;
/** A wedge that ended after all counts as a step this long at most. */
const longestMs = 60_000;

interface Watched {
  readonly stuckMs: number;
  /** Looks since anything was heard of it. */
  unheard: number;
  readonly standstill: ReturnType<typeof countStandstill>;
  suspicion: Suspicion | undefined;
}

export interface Beat {
  readonly incarnation: string;
  readonly steps: number;
  /** Slots with work for the engine, and requests that wait for a slot. */
  readonly queued: number;
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
  /** Every `beatMs`: workers that have become suspect by silence. */
  look(): string[];
}

export function createLiveness({ silentMs }: Pick<LivenessLimits, 'silentMs'>): Liveness {
  const watched = new Map<string, Watched>();
  const silentLooks = Math.ceil(silentMs / beatMs);
  let unechoed = 0;

  function wedged({ stuckMs }: Watched, { reports, longest }: Standstill): boolean {
    return reports * beatMs >= Math.max(stuckMs, patience * Math.min(longest * beatMs, longestMs));
  }

  return {
    add(incarnation, stuckMs) {
      if (watched.has(incarnation)) return;
      watched.set(incarnation, { stuckMs, unheard: 0, standstill: countStandstill(), suspicion: undefined });
    },
    forget: (incarnation) => void watched.delete(incarnation),
    beat({ incarnation, steps, queued }) {
      const worker = watched.get(incarnation);
      if (worker === undefined) return undefined;
      const before = worker.suspicion;
      worker.unheard = 0;
      worker.suspicion = wedged(worker, worker.standstill(steps, queued > 0)) ? 'ENGINE_WEDGED' : undefined;
      if (worker.suspicion === before) return undefined;
      return worker.suspicion ?? 'cleared';
    },
    heard(incarnation) {
      const worker = watched.get(incarnation);
      if (worker === undefined) return false;
      worker.unheard = 0;
      if (worker.suspicion !== 'WORKER_SILENT') return false;
      worker.suspicion = undefined;
      return true;
    },
    echo() {
      unechoed = 0;
    },
    look() {
      const silent: string[] = [];
      unechoed++;
      const deaf = unechoed > echoLooks;
      for (const [incarnation, worker] of watched) {
        worker.unheard = deaf ? 0 : worker.unheard + 1;
        if (worker.unheard <= silentLooks || worker.suspicion !== undefined) continue;
        worker.suspicion = 'WORKER_SILENT';
        silent.push(incarnation);
      }
      return silent;
    },
  };
}
