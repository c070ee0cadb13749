/** How often handling failed, per request and message type: the budget of retries. */

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

  /** Counts one more, after `before`, and says how many there were; 0 for a message of no request, which has no budget. */
  count(message: unknown, before: number): number {
    const { req, type } = (message ?? {}) as { readonly req?: unknown; readonly type?: unknown };
    if (typeof req !== 'string' || req === '' || typeof type !== 'string') return 0;
    const key = `${req} ${type}`;
    const count = Math.max(before, this.counts.get(key) ?? 0) + 1;
    this.counts.delete(key);
    this.counts.set(key, count);
    if (this.counts.size > most) this.counts.delete(this.counts.keys().next().value as string);
    return count;
  }
}
