/**
 * One message that is owed to an actor because it asked for it: a timer, an answer, a result, the end of someone it
 * watches. It is paid at most once, and the message is made when the actor handles it, so a throw in the making is the
 * actor's own crash and nobody else's.
 */
import type { ExitReason } from './contract.js';

export interface Creditor {
  paid(owed: Owed): void;
}

const nothing = (): unknown => undefined;

export class Owed {
  make: () => unknown = nothing;
  /** Paid or void: whatever comes now comes late. */
  settled = false;
  isVoid = false;
  /** Lets go of what would pay: a clock, a place among watchers. */
  release: (() => void) | undefined;
  /** For a watch: the message made of the reason. */
  onExit: ((reason: ExitReason) => unknown) | undefined;

  constructor(
    private readonly creditor: Creditor,
    readonly id: number,
  ) {}

  /** False if it was too late. */
  settle(make: () => unknown): boolean {
    if (this.settled) return false;
    this.settled = true;
    this.make = make;
    this.letGo();
    this.creditor.paid(this);
    return true;
  }

  void(): void {
    this.settled = true;
    this.isVoid = true;
    this.make = nothing;
    this.letGo();
  }

  private letGo(): void {
    const { release } = this;
    this.release = undefined;
    this.onExit = undefined;
    release?.();
  }
}
