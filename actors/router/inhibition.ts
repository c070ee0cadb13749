/**
 * Who is kept out of routing for a while (design 8.2): a worker, or a pair (P, D) that cannot hand over. Out for `firstMs`, twice as
 * long each time it fails again, then one request as a probe; only when that was served does traffic return. Pure: time comes in.
 */
export interface InhibitionConfig {
  /** 0: nobody is ever kept out. */
  readonly firstMs: number;
  readonly longestMs: number;
}

export type Standing = 'free' | 'probe' | 'out';

interface Entry {
  /** Failures of what was placed before are the same failure. */
  since: number;
  until: number;
  ms: number;
  reason: string;
  times: number;
  /** The request that tries whether it works again. */
  probe: number | undefined;
  /** Served again since then: free, and remembered for as long as a repeat is a repeat. */
  clearedAt: number | undefined;
}

/** One that is out, as status and metrics show it. */
export interface Inhibited {
  readonly incarnation: string;
  /** Set for a pair: the prefill worker that `incarnation` does not get along with. */
  readonly prefill?: string;
  /** Time until the probe; 0 = the next request is one, or one is under way. */
  readonly remainingMs: number;
  readonly reason: string;
  readonly times: number;
}

/** One that cannot hand over with so many partners is at fault itself. */
const partners = 2;

/** A worker's key is its incarnation. */
export const pairKey = (prefill: string, decode: string): string => `${prefill}>${decode}`;

export class Inhibitions {
  readonly #config: InhibitionConfig;
  readonly #entries = new Map<string, Entry>();
  /** How often something was put out, for metrics. */
  total = 0;

  constructor(config: InhibitionConfig) {
    this.#config = config;
  }

  get size(): number {
    return this.#entries.size;
  }

  standing(key: string, now: number): Standing {
    const entry = this.#entries.get(key);
    if (entry === undefined || entry.clearedAt !== undefined) return 'free';
    return now < entry.until || entry.probe !== undefined ? 'out' : 'probe';
  }

  /** When its probe is due; the least bad of several comes back first. */
  until(key: string): number {
    return this.#entries.get(key)?.until ?? 0;
  }

  /** `num` was placed there: if nobody tries it already, this is its probe. */
  placed(key: string, num: number): void {
    const entry = this.#entries.get(key);
    if (entry !== undefined && entry.clearedAt === undefined) entry.probe ??= num;
  }

  /** `num` was served there. */
  served(key: string, num: number, now: number): void {
    const entry = this.#entries.get(key);
    if (entry?.probe !== num) return;
    entry.probe = undefined;
    entry.clearedAt = now;
  }

  /** `num` ended without a verdict on it: its client left, or another worker failed. */
  withdrawn(key: string, num: number): void {
    const entry = this.#entries.get(key);
    if (entry?.probe === num) entry.probe = undefined;
  }

  /** What was placed there at `placedAt` failed for `reason`. Failures of several pairs add up to the worker they share. */
  failed(key: string, reason: string, placedAt: number, now: number): void {
    this.#putOut(key, reason, placedAt, now);
    const halves = key.split('>');
    if (halves.length === 1) return;
    for (const half of halves) if (this.#brokenPairs(half, now) >= partners) this.#putOut(half, reason, placedAt, now);
  }

  #brokenPairs(half: string, now: number): number {
    let count = 0;
    for (const [key, { since, clearedAt }] of this.#entries) {
      const recent = clearedAt === undefined && now - since < this.#config.longestMs;
      if (recent && (key.startsWith(`${half}>`) || key.endsWith(`>${half}`))) count++;
    }
    return count;
  }

  #putOut(key: string, reason: string, placedAt: number, now: number): void {
    const entry = this.#entries.get(key);
    if (this.#config.firstMs === 0) return;
    // All that ran there when it failed fails with it: once is enough.
    if (entry !== undefined && placedAt <= entry.since) return;
    const repeat =
      entry !== undefined && (entry.clearedAt === undefined || now - entry.clearedAt < this.#config.longestMs);
    const ms = repeat ? Math.min(entry.ms * 2, this.#config.longestMs) : this.#config.firstMs;
    const times = repeat ? entry.times + 1 : 1;
    this.#entries.set(key, { since: now, until: now + ms, ms, reason, times, probe: undefined, clearedAt: undefined });
    this.total++;
  }

  /** The incarnation is gone, and every pair it was in. */
  forget(incarnation: string): void {
    for (const key of this.#entries.keys()) {
      if (key === incarnation || key.startsWith(`${incarnation}>`) || key.endsWith(`>${incarnation}`)) {
        this.#entries.delete(key);
      }
    }
  }

  list(now: number): readonly Inhibited[] {
    const out: Inhibited[] = [];
    for (const [key, { until, reason, times, clearedAt }] of this.#entries) {
      if (clearedAt !== undefined) continue;
      const [first, second] = key.split('>') as [string, string?];
      const remainingMs = Math.max(0, Math.round(until - now));
      const names = second === undefined ? { incarnation: first } : { incarnation: second, prefill: first };
      out.push({ ...names, remainingMs, reason, times });
    }
    return out;
  }
}
