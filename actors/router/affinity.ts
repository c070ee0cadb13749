/**
 * Session affinity: a client's session stays with the workers that hold its KV for as long as it is used within the TTL. The
 * table is bounded; the binding that was used longest ago makes room.
 */

export interface SessionsConfig {
  /** A session that is not used for this long is forgotten. */
  readonly ttlMs: number;
  readonly limit: number;
}

export interface Binding {
  readonly prefill: string | undefined;
  readonly decode: string;
}

interface Bound extends Binding {
  expiresAt: number;
}

export class SessionAffinity {
  readonly #ttlMs: number;
  readonly #limit: number;
  /** In the order of use. */
  readonly #sessions = new Map<string, Bound>();

  constructor({ ttlMs, limit }: SessionsConfig) {
    this.#ttlMs = ttlMs;
    this.#limit = limit;
  }

  get size(): number {
    return this.#sessions.size;
  }

  /** Where the session was served last. Looking does not renew: a dispatch does. */
  find(session: string, now: number): Binding | undefined {
    const bound = this.#sessions.get(session);
    if (bound === undefined) return undefined;
    if (bound.expiresAt > now) return bound;
    this.#sessions.delete(session);
    return undefined;
  }

  /** The session was dispatched there. */
  bind(session: string, { prefill, decode }: Binding, now: number): void {
    this.#sessions.delete(session);
    this.#sessions.set(session, { prefill, decode, expiresAt: now + this.#ttlMs });
    if (this.#sessions.size > this.#limit) this.#sessions.delete(this.#sessions.keys().next().value as string);
  }

  /** A worker is gone: its sessions choose anew. */
  workerGone(incarnation: string): void {
    for (const [session, { prefill, decode }] of this.#sessions) {
      if (prefill === incarnation || decode === incarnation) this.#sessions.delete(session);
    }
  }
}

/** As a request would ask for it. Where D may compute prompts itself (not `both`), what it has cached may make it do so. */
export const pinTo = ({ prefill, decode }: Binding, both: boolean) =>
  prefill === undefined || !both ? { decode } : { decode, prefill };
