/**
 * What one reader knows of the broker's wall clock: messages come in the order in which they were stored, so a time that is well before the
 * last one means that the clock was put back, and ages by the old measure are wrong until it is measured again.
 */

/** A clock that is disciplined slews by less. */
const stepMs = 250;

export class StoredTimes {
  #last = Number.NEGATIVE_INFINITY;

  /** Milliseconds since 1970, of the next message. */
  steppedBack(storedAt: number): boolean {
    const back = storedAt < this.#last - stepMs;
    this.#last = storedAt;
    return back;
  }
}
