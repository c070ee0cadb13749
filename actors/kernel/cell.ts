/** The faces that the parts of the kernel show each other. */
import type { Address } from '../../transport/index.js';
import type { DeadLetter, ExitReason, Log, World } from './contract.js';
import type { Dispatcher } from './dispatcher.js';
import type { Owed } from './owed.js';

/** What a cell needs of the kernel it lives in. */
export interface Host {
  readonly world: World;
  readonly dispatcher: Dispatcher;
  readonly counters: { delivered: number; crashes: number };
  readonly log: Log;
  deadLetter(to: string, message: unknown, reason: DeadLetter['reason'], error?: Error): void;
  /** Whether a living actor has this path. */
  lives(path: string): boolean;
  gone(cell: Cell): void;
}

/** What an actor's door needs of the actor. */
export interface Cell {
  readonly host: Host;
  readonly path: string;
  readonly address: Address;
  readonly incarnation: number;
  /** See `Ctx.origin`. */
  readonly origin: number;
  /** Set once it has ended. */
  readonly reason: ExitReason | undefined;
  /** A message that will come because this actor asked for it. Not subject to the mailbox's capacity. */
  owe(): Owed;
  /** The actor no longer wants it, whether it is still out or waits in the mailbox. */
  forgive(id: number): void;
  /** Ends now, or after the current message if one is being handled. */
  endSoon(reason: ExitReason): void;
}
