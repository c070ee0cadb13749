/**
 * A queue in a ring whose size is a power of two. It doubles when full, so an idle actor costs no more than its object,
 * and lets a large ring go when it runs empty, so one burst is not paid for ever.
 *
 *     ring  [ . . c d e . . . ]
 *                 ^head  ^head + length
 */
const smallest = 8;
/** A ring up to this size is kept when it runs empty: most bursts are smaller, and a new ring costs a pause. */
const kept = 1024;
const none: unknown[] = [];

export class Mailbox {
  private ring = none;
  private head = 0;
  length = 0;

  push(message: unknown): void {
    if (this.length === this.ring.length) this.grow();
    this.ring[(this.head + this.length) & (this.ring.length - 1)] = message;
    this.length++;
  }

  /** The oldest message. Only when `length` > 0. */
  shift(): unknown {
    const message = this.ring[this.head];
    this.ring[this.head] = undefined;
    this.head = (this.head + 1) & (this.ring.length - 1);
    this.length--;
    if (this.length === 0 && this.ring.length > kept) this.clear();
    return message;
  }

  clear(): void {
    this.ring = none;
    this.head = 0;
    this.length = 0;
  }

  private grow(): void {
    const larger = new Array<unknown>(Math.max(smallest, this.ring.length * 2));
    for (let index = 0; index < this.length; index++) {
      larger[index] = this.ring[(this.head + index) & (this.ring.length - 1)];
    }
    this.ring = larger;
    this.head = 0;
  }
}
