/**
 * What the workers' caches hold of a prompt, as far as the router can know: what they have reported, and what its own dispatches will have
 * left there by the time that a sibling arrives (Dynamo's predict-on-route). An assumption ends by itself; a report outlives it.
 */
import { createKvIndex, type KvIndex, type KvIndexStats } from '../../gpu/index.js';
import type { KvOp } from '../../transport/index.js';
import type { TierOverlap } from './cost.js';

export interface CachesConfig {
  /** Of the index of reports; assumptions take an eighth of it beside. Without reports they take all of it. */
  readonly maxBytes: number;
  /** A dispatched prompt counts as cached for this long. 0: only reports count. */
  readonly assumeMs: number;
  /** False: nobody reports, and what was dispatched is all there is to go by (Dynamo's approximate mode). @default true */
  readonly reports?: boolean;
}

export const noOverlap: TierOverlap = { device: 0, host: 0, disk: 0 };

export class Caches {
  readonly #reported: KvIndex | undefined;
  readonly #assumed;
  readonly #assumeMs: number;

  /** Throws RangeError for `maxBytes` below 512 KiB. */
  constructor({ maxBytes, assumeMs, reports = true }: CachesConfig) {
    this.#reported = reports ? createKvIndex({ maxBytes }) : undefined;
    this.#assumed = createKvIndex({ maxBytes: reports ? Math.floor(maxBytes / 8) : maxBytes });
    this.#assumeMs = assumeMs;
  }

  change(incarnation: string, rank: number, ops: readonly KvOp[]): void {
    this.#reported?.apply(incarnation, rank, ops);
  }

  /** The worker was given a prompt with these blocks. */
  assume(incarnation: string, hashes: BigUint64Array, now: number): void {
    if (this.#assumeMs > 0 && hashes.length > 0) this.#assumed.assume(incarnation, 0, hashes, now, this.#assumeMs);
  }

  forget(incarnation: string): void {
    this.#reported?.forget(incarnation);
    this.#assumed.forget(incarnation);
  }

  /** By incarnation; who is missing has nothing. Of a worker's ranks the one with most counts: they share its queue. */
  overlaps(hashes: BigUint64Array, now: number): ReadonlyMap<string, TierOverlap> {
    const found = new Map<string, TierOverlap>();
    if (hashes.length === 0) return found;
    for (const each of this.#reported?.find(hashes) ?? []) better(found, each.incarnation, each);
    for (const each of this.#assumed.find(hashes, now)) better(found, each.incarnation, each);
    return found;
  }

  stats(): KvIndexStats {
    return (this.#reported ?? this.#assumed).stats();
  }
}

function better(found: Map<string, TierOverlap>, incarnation: string, { device, host, disk }: TierOverlap): void {
  const known = found.get(incarnation);
  if (known === undefined || known.device + known.host + known.disk < device + host + disk) {
    found.set(incarnation, { device, host, disk });
  }
}
