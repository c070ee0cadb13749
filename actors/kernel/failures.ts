/** How often handling failed, per subject (a request, a worker) and message type: the budget of retries. */

/** A message that waits to be handled again. Carries its own count, so that its tries end even when the record has forgotten it. */
export class Again {
  constructor(
    readonly message: unknown,
    readonly failures: number,
  ) {}
}

/** The pair that failed least recently is forgotten first. */
const most = 1_024;

export class Failures {
  private readonly counts = new Map<string, number>();

  /** Counts one more, after `before`, and says how many there were. */
  count(about: string, type: string, before: number): number {
    const key = `${about} ${type}`;
    const count = Math.max(before, this.counts.get(key) ?? 0) + 1;
    this.counts.delete(key);
    this.counts.set(key, count);
    if (this.counts.size > most) this.counts.delete(this.counts.keys().next().value as string);
    return count;
  }
}
