/**
 * What the event streams of a process share: one flush per turn of the event loop, so that all text of one step (or of
 * several, when the process falls behind) leaves in one write per socket; one keep-alive timer; one clock reading per turn.
 */

export interface HubStream {
  /** Writes what has gathered. */
  flush(): void;
  /** The keep-alive clock ticked: `true` if nothing was written since the tick before. */
  tick(): void;
}

export class StreamHub {
  readonly #streams = new Set<HubStream>();
  #waiting: HubStream[] = [];
  #scheduled = false;
  #now = 0;
  #timer: NodeJS.Timeout | undefined;
  readonly #onError: (error: unknown) => void;

  constructor(keepAliveMs: number, onError: (error: unknown) => void) {
    this.#onError = onError;
    if (keepAliveMs > 0) {
      // Two ticks without a write make a comment: silence lasts between half and the whole of keepAliveMs.
      this.#timer = setInterval(() => this.#tick(), keepAliveMs / 2);
      this.#timer.unref();
    }
  }

  get size(): number {
    return this.#streams.size;
  }

  /** Milliseconds, monotonic; the same for everything that happens before the next flush. */
  now(): number {
    if (this.#now === 0) {
      this.#now = performance.now();
      this.#schedule();
    }
    return this.#now;
  }

  add(stream: HubStream): void {
    this.#streams.add(stream);
  }

  remove(stream: HubStream): void {
    this.#streams.delete(stream);
  }

  /** `stream.flush()` at the end of this turn. The caller asks once per flush. */
  wake(stream: HubStream): void {
    this.#waiting.push(stream);
    this.#schedule();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    // Immediates run after the sockets of this turn were read: everything that arrived together leaves together.
    setImmediate(this.#run);
  }

  readonly #run = (): void => {
    this.#scheduled = false;
    this.#now = 0;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const stream of waiting) this.#guard(() => stream.flush());
  };

  #tick(): void {
    for (const stream of this.#streams) this.#guard(() => stream.tick());
  }

  #guard(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#onError(error);
    }
  }
}
