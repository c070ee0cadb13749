/**
 * One child's place among its siblings. It outlives the child's lives and knows how to begin and end one; when to do
 * either is the supervisor's business.
 */
import type { ExitReason } from '../../actors/index.js';
import type { ChildState, ChildStatus, Running, Shutdown } from './child.js';
import type { Clock } from './clock.js';
import type { Member } from './decisions.js';
import { asError, SupervisionError } from './errors.js';
import type { ResolvedSpec } from './options.js';

export type StartOutcome =
  | { readonly kind: 'up'; readonly life: Running }
  | { readonly kind: 'failed'; readonly error: Error }
  /** Its life or its start would not end: nothing may be started beside it. */
  | { readonly kind: 'hung'; readonly error: Error }
  /** The supervisor changed its mind. */
  | { readonly kind: 'aborted' };

export interface SlotHost {
  readonly clock: Clock;
  readonly graceMs: number;
  changed(status: ChildStatus): void;
  /** A life has ended without having been asked to. */
  endedByItself(slot: Slot, reason: ExitReason): void;
}

type Attempt = { readonly life: Running } | { readonly error: Error };

export class Slot implements Member {
  life: Running | undefined;
  doomed = false;
  wanted = true;
  /** Somebody waits for its first start; it is not yet one of the siblings that share a fate. */
  joining = false;
  /** Failures in a row, for the back-off. */
  failures = 0;
  /** When the back-off under way ends. */
  retryAt = 0;
  lastReason: ExitReason | undefined;

  private state: ChildState = 'down';
  private since: number;
  private incarnation = '';
  private lives = 0;
  private asked = false;
  private starting: AbortController | undefined;
  private startUnderWay: Promise<StartOutcome> | undefined;
  private ending: Promise<SupervisionError | undefined> | undefined;
  /** While `end` waits: what tells it that the life is gone, and what makes it impatient. */
  private gone: (() => void) | undefined;
  private force: (() => void) | undefined;

  constructor(
    readonly spec: ResolvedSpec,
    private readonly host: SlotHost,
  ) {
    this.since = host.clock.now();
  }

  get live(): boolean {
    return this.life !== undefined;
  }

  /** Milliseconds since the present state began. */
  get age(): number {
    return this.host.clock.now() - this.since;
  }

  get status(): ChildStatus {
    const { state, incarnation, lastReason, since, retryAt } = this;
    const quiet = state === 'up' && this.age >= this.spec.quietMs;
    return {
      name: this.spec.name,
      state,
      incarnation,
      restarts: Math.max(0, this.lives - 1),
      lastReason,
      since,
      failures: quiet ? 0 : this.failures,
      retryAt,
    };
  }

  enter(state: ChildState): void {
    if (state === this.state) return;
    this.state = state;
    this.since = this.host.clock.now();
    this.host.changed(this.status);
  }

  /** Begins a life. Never rejects. */
  async start(): Promise<StartOutcome> {
    this.startUnderWay = this.begin();
    const outcome = await this.startUnderWay;
    this.startUnderWay = undefined;
    return outcome;
  }

  private async begin(): Promise<StartOutcome> {
    const { clock, graceMs } = this.host;
    const { name, child, startDeadlineMs } = this.spec;
    const controller = new AbortController();
    this.starting = controller;
    this.enter(this.lives === 0 ? 'starting' : 'restarting');

    let slow: SupervisionError | undefined;
    const cancels = [
      clock.setTimer(startDeadlineMs, () => {
        slow = new SupervisionError('SUP_CHILD_SLOW', [name, startDeadlineMs]);
        controller.abort();
      }),
    ];
    const attempt: Promise<Attempt> = (async () => child.start(controller.signal))().then(
      (life) => ({ life }),
      (thrown: unknown) => ({ error: asError(thrown) }),
    );
    const hung = new Promise<undefined>((resolve) => {
      const onAbort = (): void => void cancels.push(clock.setTimer(graceMs, () => resolve(undefined)));
      controller.signal.addEventListener('abort', onAbort, { once: true });
    });
    const result = await Promise.race([attempt, hung]);
    for (const cancel of cancels) cancel();
    this.starting = undefined;

    if (result === undefined) {
      // Should it begin after all, it must not live beside its successor.
      void attempt.then((late) => 'life' in late && killQuietly(late.life));
      return { kind: 'hung', error: new SupervisionError('SUP_CHILD_HUNG', [name, graceMs]) };
    }
    if ('error' in result) {
      if (slow !== undefined) {
        // How far it had come is worth knowing.
        const error = new SupervisionError('SUP_CHILD_SLOW', [name, startDeadlineMs], { cause: result.error });
        return { kind: 'failed', error };
      }
      return controller.signal.aborted ? { kind: 'aborted' } : { kind: 'failed', error: result.error };
    }
    this.adopt(result.life);
    if (!controller.signal.aborted) {
      this.enter('up');
      return { kind: 'up', life: result.life };
    }
    const stuck = await this.endLife('brutal');
    if (stuck !== undefined) return { kind: 'hung', error: stuck };
    return slow === undefined ? { kind: 'aborted' } : { kind: 'failed', error: slow };
  }

  /** The start under way, if any, is not wanted any more. */
  abortStart(): void {
    this.starting?.abort();
  }

  /**
   * Gives up the start under way and ends the present life, as its specification says or at once. Resolves when it is
   * gone; with an error if it would not go. Never rejects.
   */
  async end(shutdown = this.spec.shutdown): Promise<SupervisionError | undefined> {
    this.abortStart();
    await this.startUnderWay;
    return this.endLife(shutdown);
  }

  /** Ends the present life without waiting; whoever waits for its end goes on when it is gone. */
  kill(): void {
    this.abortStart();
    if (this.force !== undefined) this.force();
    else if (this.life !== undefined) {
      this.asked = true;
      killQuietly(this.life);
    }
  }

  private async endLife(shutdown: Shutdown): Promise<SupervisionError | undefined> {
    const { life } = this;
    if (this.ending !== undefined) {
      if (shutdown === 'brutal') this.force?.();
      return this.ending;
    }
    if (life === undefined) return undefined;
    this.asked = true;
    this.enter('draining');
    this.ending = this.awaitEnd(life, shutdown);
    const stuck = await this.ending;
    this.ending = undefined;
    return stuck;
  }

  private async awaitEnd(life: Running, shutdown: Shutdown): Promise<SupervisionError | undefined> {
    const { clock, graceMs } = this.host;
    let stuck: SupervisionError | undefined;
    let killed = false;
    const cancels: (() => void)[] = [];
    const kill = (): void => {
      if (killed) return;
      killed = true;
      killQuietly(life);
      cancels.push(
        clock.setTimer(graceMs, () => {
          stuck = new SupervisionError('SUP_CHILD_HUNG', [this.spec.name, graceMs]);
          this.ended(life, { kind: 'error', error: stuck });
        }),
      );
    };
    await new Promise<void>((resolve) => {
      this.gone = resolve;
      this.force = kill;
      if (shutdown === 'brutal') return kill();
      stopQuietly(life, shutdown === 'infinity' ? Number.POSITIVE_INFINITY : shutdown);
      if (shutdown !== 'infinity') cancels.push(clock.setTimer(shutdown, kill));
    });
    for (const cancel of cancels) cancel();
    return stuck;
  }

  private adopt(life: Running): void {
    this.life = life;
    this.lives++;
    this.incarnation = life.incarnation;
    this.asked = false;
    life.exit.then(
      (reason) => this.ended(life, reason),
      (thrown: unknown) => this.ended(life, { kind: 'error', error: asError(thrown) }),
    );
  }

  private ended(life: Running, reason: ExitReason): void {
    if (this.life !== life) return;
    this.life = undefined;
    this.lastReason = reason;
    const { gone } = this;
    this.gone = undefined;
    this.force = undefined;
    gone?.();
    if (!this.asked) this.host.endedByItself(this, reason);
  }
}

function killQuietly(life: Running): void {
  try {
    life.kill();
  } catch {
    // A kill that throws has not killed: the grace period finds out.
  }
}

function stopQuietly(life: Running, deadlineMs: number): void {
  // What counts is the exit, and the deadline; how the request itself fared does not.
  void (async () => life.stop(deadlineMs))().catch(() => undefined);
}
