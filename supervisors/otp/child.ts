/**
 * What a supervisor knows of what it supervises. An in-process actor, an OS process and a whole supervisor are all a
 * Child, so one implementation of the restart rules serves them all.
 */
import type { ExitReason } from '../../actors/index.js';

/** One life of a child: begins when `start` resolves, ends when `exit` does. */
export interface Running {
  /** Names this life and no other, e.g. `decode-0-m3k9x2`; differs after every restart. */
  readonly incarnation: string;
  /**
   * Resolves once, when the child has ended and holds nothing any more. Never rejects: a crash is `error`, an exit that
   * a signal forced is `killed`, an end by itself `normal`, an end that was asked for `shutdown`.
   */
  readonly exit: Promise<ExitReason>;
  /**
   * Asks the child to finish within `deadlineMs` (Infinity = as long as it takes). It resolves with the exit; the
   * supervisor calls `kill` when the deadline passes, so an implementation need not enforce it. Idempotent.
   */
  stop(deadlineMs: number): Promise<unknown>;
  /** Ends the child now, without its cooperation. Idempotent. A supervisor waits for `exit` after it. */
  kill(): void;
}

export interface Child {
  /**
   * Resolves when the child is ready to work, rejects when it could not start; a rejection means nothing is left behind.
   * Never called while an earlier life goes on. `abort` fires when the supervisor no longer wants the child (it is
   * stopping, or the start deadline passed): give up quickly and reject. A life that begins in spite of it is killed.
   */
  start(abort: AbortSignal): Promise<Running>;
}

/**
 * permanent: always restarted. transient: restarted after an abnormal end (`error`, `killed`). temporary: never
 * restarted, and forgotten when it ends.
 */
export type RestartType = 'permanent' | 'transient' | 'temporary';

/** How long a child may take to stop: `brutal` = killed at once, milliseconds, or as long as it needs. */
export type Shutdown = 'brutal' | 'infinity' | number;

export interface ChildSpec {
  /** Unique among the siblings. */
  readonly name: string;
  readonly child: Child;
  /** Default permanent. */
  readonly restart?: RestartType;
  /** Default 5,000 ms for workers, infinity for supervisors. */
  readonly shutdown?: Shutdown;
  /** Default worker; decides the default of `shutdown`. */
  readonly kind?: 'worker' | 'supervisor';
  /** Its own end counts for `autoShutdown`. Not with permanent, nor with autoShutdown never. Default false. */
  readonly significant?: boolean;
  /** A start that takes longer has failed. Default 60,000 ms. */
  readonly startDeadlineMs?: number;
  /** A life this long ends a row of failures, so that the back-off begins anew. Default: the supervisor's. */
  readonly quietMs?: number;
}

export type ChildState = 'starting' | 'up' | 'restarting' | 'draining' | 'down';

/** What `status` shows of a child. */
export interface ChildStatus {
  readonly name: string;
  readonly state: ChildState;
  /** '' before the first start. */
  readonly incarnation: string;
  /** Lives after the first. */
  readonly restarts: number;
  /** How the last life ended; undefined while it is the first. */
  readonly lastReason: ExitReason | undefined;
  /** Monotonic milliseconds at which `state` began. */
  readonly since: number;
  /** Lives and starts that failed in a row; 0 after a quiet time. */
  readonly failures: number;
  /** Monotonic milliseconds at which the last back-off ended or will end. */
  readonly retryAt: number;
}
