/**
 * The kernel's contract: what an actor is, and the only door through which it sees the world. Behaviours are
 * synchronous; `ctx` answers are recordable (design 4.5 and 7).
 */
import type { Address, Body, Head, MessageType, StepFrame } from '../../transport/index.js';

/** A handle to an actor's mailbox that accepts M. Branded: Ref<A> is not Ref<B> (nact's types have that hole). */
export interface Ref<in M> {
  readonly path: string;
  /** Changes with every restart: a message to an old incarnation is a dead letter, never the new one's surprise. */
  readonly incarnation: number;
  readonly __accepts: (message: M) => void;
}

export type ExitReason =
  | { readonly kind: 'normal' }
  /** Asked to end. `cause`: why a supervisor asked itself, e.g. too many restarts (OTP's `{shutdown, Why}`). */
  | { readonly kind: 'shutdown'; readonly cause?: Error }
  | { readonly kind: 'killed' }
  | { readonly kind: 'error'; readonly error: Error };

export type TimerId = number & { readonly __timer: never };

/** The door to the world. Everything here can be recorded and, in replay, answered from the tape. */
export interface Ctx<M> {
  readonly self: Ref<M>;
  /** This actor's address on the bus: `component.incarnation.actor`. */
  readonly address: Address;
  /** Of the message that is being handled: 0 told, above 0 the number of what was owed, -1 handled once more after a failure. */
  readonly origin: number;
  /** Monotonic milliseconds. */
  now(): number;
  /** Wall clock, milliseconds since 1970: only for what people read. */
  wallTime(): number;
  /** [0, 1). */
  random(): number;
  /** Time-sortable, unique over processes, 26 characters of [0-9a-z]. */
  id(): string;
  /** `message` arrives in this actor's own mailbox after `ms`; gone when the actor stops. */
  after(ms: number, message: M): TimerId;
  cancelTimer(timer: TimerId): void;

  tell<T>(to: Ref<T>, message: T): void;
  /**
   * `build` gets the reference that the answer goes to. The answer, or `late` after `timeoutMs`, arrives as this
   * actor's own message, exactly once.
   */
  ask<T, R>(to: Ref<T>, build: (replyTo: Ref<R>) => T, timeoutMs: number, answer: (reply: R) => M, late: () => M): void;
  /** `onExit` arrives when the target ends, at once if it has ended already. */
  watch(target: Ref<never>, onExit: (reason: ExitReason) => M): void;
  /**
   * The result of a native promise as this actor's own message: `got`, or `failed` (also with ACT_TIMEOUT after
   * `timeoutMs`), exactly once; neither if the actor ends before.
   */
  pipe<T>(work: Promise<T>, timeoutMs: number, got: (value: T) => M, failed: (error: Error) => M): void;
  /** Ends this actor after the current message, reason normal; what else its mailbox holds becomes dead letters. */
  stop(): void;

  /** Command to another process. `refused` arrives if it could not be stored; storing is otherwise silent. */
  command<T extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    head: Head,
    refused: (code: string, message: string) => M,
  ): void;
  frame<T extends MessageType>(to: Address, type: T, body: Body<T>, head: Head): void;
  step(gateway: string, frame: StepFrame): void;
  query<T extends MessageType, R extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    answer: R,
    timeoutMs: number,
    got: (reply: Body<R>) => M,
    failed: (code: string) => M,
  ): void;

  log: Log;
}

export interface Log {
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

/** How an actor behaves: plain data in, plain data out. `handle` may mutate and return the same state. */
export interface Behaviour<M, S> {
  readonly name: string;
  /** Most messages that wait; what happens to one more is `overflow`. Default 10,000, refuse. */
  readonly capacity?: number;
  /** `refuse`: the teller's `tell` counts a dead letter with reason full. `crash`: the actor fails; for mailboxes that must not lose. */
  readonly overflow?: 'refuse' | 'crash';
  start(ctx: Ctx<M>): S;
  handle(state: S, message: M, ctx: Ctx<M>): S;
  /** What a message is about: a request, a worker. '': everything, so that a throw is the actor's. Default: its `req`. */
  about?(message: M): string;
  /**
   * `handle` threw on a message that is about something, for the `failures`-th time for that and the message's `type`. Puts the
   * state right, so that the actor can go on without it, and says what becomes of the message; a throw, or none of
   * these, is the actor's failure. `retry`: once more, after what waits already; `drop`: a dead letter with the error as its reason.
   */
  contain?(state: S, message: M, failures: number, error: Error, ctx: Ctx<M>): 'retry' | 'drop' | 'crash';
  /** Last words: release what the state owns. Timers are gone already. */
  stopped?(state: S, reason: ExitReason, ctx: Ctx<M>): void;
}

/** What the kernel stands on; the composition root provides the real one, the simulator a virtual one. */
export interface World {
  now(): number;
  wallTime(): number;
  random(): number;
  id(): string;
  setTimer(ms: number, fire: () => void): () => void;
  readonly post: import('../../transport/index.js').Post;
  readonly log: (actor: string) => Log;
}

export interface DeadLetter {
  readonly to: string;
  readonly message: unknown;
  /**
   * stopped: no such actor any more. stale: its address has a newer incarnation, or the answer came late or twice. failed: handling it
   * threw as often as it may.
   */
  readonly reason: 'stopped' | 'full' | 'stale' | 'failed';
  /** For `failed`. */
  readonly error?: Error;
}

/** A set of actors in one process, on one dispatcher. */
export interface Kernel {
  /**
   * Runs `start` before it returns; a throw there makes an actor that has ended already, reason error. Throws
   * ACT_NAME_TAKEN while an earlier actor of this address lives, ACT_KERNEL_DOWN after shutdown.
   */
  spawn<M, S>(behaviour: Behaviour<M, S>, address: Address): Ref<M>;
  /** Delivers from outside any actor (sockets, engine callbacks, specs). False if it became a dead letter. */
  tell<M>(to: Ref<M>, message: M): boolean;
  /** Rejects with ACT_TIMEOUT, or at once with ACT_UNDELIVERED if the question became a dead letter. */
  ask<M, R>(to: Ref<M>, build: (replyTo: Ref<R>) => M, timeoutMs: number): Promise<R>;
  /**
   * Lets the actor finish what its mailbox holds up to now, for at most `deadlineMs`, then ends it: reason shutdown, or
   * killed if the deadline came first. From now on it takes no message, and its timers and asks are void.
   */
  stop(target: Ref<never>, deadlineMs: number): Promise<ExitReason>;
  /** Ends the actor now, or after the message it is handling. */
  kill(target: Ref<never>): Promise<ExitReason>;
  /** Resolves when the actor has ended, at once if it has already. */
  exit(target: Ref<never>): Promise<ExitReason>;
  /** How the actor ended; undefined while it lives. */
  ended(target: Ref<never>): ExitReason | undefined;
  /** Messages waiting, for status and metrics. */
  depth(target: Ref<never>): number;
  onDeadLetter(listener: (letter: DeadLetter) => void): () => void;
  readonly counters: { readonly delivered: number; readonly deadLetters: number; readonly crashes: number };
  /** Stops every actor in reverse order of spawning, one after the other; those left at the deadline are killed. A second call can only shorten it. */
  shutdown(deadlineMs: number): Promise<void>;
}
