/** Who decides which actor runs next. nact in production; a seeded choice in specs and the simulator. */

export interface Runnable {
  readonly path: string;
  /** Handles up to `batch` messages; true if it wants another turn. Never throws. */
  run(batch: number): boolean;
}

export interface Dispatcher {
  /**
   * Gives `actor` a turn soon, never from inside this call, and further turns as long as `run` says true. The kernel
   * does not schedule an actor that has a turn coming.
   */
  schedule(actor: Runnable): void;
  /** The actor has ended: a turn that is still coming is void. */
  forget(actor: Runnable): void;
  /** No turns any more; what was scheduled is void. */
  close(): void;
}
