/**
 * The last decisions of a router with all that they rest on, so that it can say of a request why it went where it went. Bounded by
 * what it holds, not by time: a decision among many workers is large.
 */
import type { DisaggChoice } from './disagg.js';
import type { Decision } from './select.js';

/** One attempt of a request, as it was placed or came to wait. */
export interface RouteRecord {
  /** Request id. */
  readonly id: string;
  readonly attempt: number;
  /** Milliseconds since 1970. */
  readonly at: number;
  /** In the order they were made: D first, then P for it. */
  readonly decisions: readonly Decision[];
  /** Whether the prompt was worth a prefill worker; absent where there is none. */
  readonly disagg?: DisaggChoice;
  /** Undefined: it waits, for nobody could take it. */
  readonly placed: { readonly prefill?: string; readonly decode: string } | undefined;
  /** Prompt tokens that the worker that computes the prompt was expected to have cached. */
  readonly expectedTokens: number;
  /** Of a session: its first request, served where the one before was, or elsewhere because that could not be. */
  readonly session?: 'new' | 'kept' | 'moved';
  /** What it says it had; undefined until its first token. */
  cachedTokens?: number;
}

const mostRecords = 1_024;
/** Workers compared or excluded in all of them: about 200 bytes each. */
const mostRows = 65_536;

const rowsOf = ({ decisions }: RouteRecord) =>
  decisions.reduce((sum, { candidates, excluded }) => sum + candidates.length + excluded.length, 0);

export class RouteLog {
  /** In the order of arrival, several per request. */
  readonly #records = new Set<RouteRecord>();
  readonly #byId = new Map<string, RouteRecord[]>();
  #rows = 0;

  add(record: RouteRecord): void {
    this.#records.add(record);
    this.#rows += rowsOf(record);
    const known = this.#byId.get(record.id);
    if (known === undefined) this.#byId.set(record.id, [record]);
    else known.push(record);
    for (const oldest of this.#records) {
      if (this.#records.size <= mostRecords && this.#rows <= mostRows) break;
      this.#drop(oldest);
    }
  }

  /** Oldest first; empty: not known, or too long ago. */
  find(id: string): readonly RouteRecord[] {
    return this.#byId.get(id) ?? [];
  }

  get size(): number {
    return this.#records.size;
  }

  #drop(record: RouteRecord): void {
    this.#records.delete(record);
    this.#rows -= rowsOf(record);
    // Its own are in the order of arrival, too: it is the first of them.
    const left = this.#byId.get(record.id)?.slice(1) ?? [];
    if (left.length === 0) this.#byId.delete(record.id);
    else this.#byId.set(record.id, left);
  }
}
