/** The kernel's Ctx: made once per actor; every member is a thin line to the world. */
import type { Address, Body, Head, MessageType, StepFrame } from '../../transport/index.js';
import type { Cell } from './cell.js';
import type { Ctx, ExitReason, Log, Ref, TimerId } from './contract.js';
import { ActorError, asError, codeOf } from './errors.js';
import type { Owed } from './owed.js';
import { Target, target } from './target.js';

/** The place one answer goes. A second or late answer is a dead letter. */
class ReplyTarget extends Target {
  constructor(
    private readonly asker: Cell,
    private readonly owed: Owed,
    private readonly answer: (reply: never) => unknown,
  ) {
    super(`${asker.path}/reply`, asker.incarnation);
  }

  accept(message: unknown): boolean {
    if (this.owed.settle(() => this.answer(message as never))) return true;
    this.asker.host.deadLetter(this.path, message, this.asker.reason === undefined ? 'stale' : 'stopped');
    return false;
  }
}

export class Door<M> implements Ctx<M> {
  private journal: Log | undefined;

  constructor(private readonly cell: Cell) {}

  get self(): Ref<M> {
    return this.cell as unknown as Ref<M>;
  }

  get address(): Address {
    return this.cell.address;
  }

  get origin(): number {
    return this.cell.origin;
  }

  get log(): Log {
    this.journal ??= this.cell.host.world.log(this.cell.path);
    return this.journal;
  }

  now(): number {
    return this.cell.host.world.now();
  }

  wallTime(): number {
    return this.cell.host.world.wallTime();
  }

  random(): number {
    return this.cell.host.world.random();
  }

  id(): string {
    return this.cell.host.world.id();
  }

  after(ms: number, message: M): TimerId {
    const owed = this.owe();
    this.clock(owed, ms, () => message);
    return owed.id as TimerId;
  }

  cancelTimer(timer: TimerId): void {
    this.cell.forgive(timer);
  }

  tell<T>(to: Ref<T>, message: T): void {
    target(to as Ref<never>).accept(message);
  }

  ask<T, R>(
    to: Ref<T>,
    build: (replyTo: Ref<R>) => T,
    timeoutMs: number,
    answer: (reply: R) => M,
    late: () => M,
  ): void {
    const owed = this.owe();
    this.clock(owed, timeoutMs, late);
    this.tell(to, build(new ReplyTarget(this.cell, owed, answer) as unknown as Ref<R>));
  }

  watch(of: Ref<never>, onExit: (reason: ExitReason) => M): void {
    const owed = this.owe();
    if (!owed.settled) target(of).watchedBy(owed, onExit);
  }

  pipe<T>(work: Promise<T>, timeoutMs: number, got: (value: T) => M, failed: (error: Error) => M): void {
    const owed = this.owe();
    this.clock(owed, timeoutMs, () => failed(new ActorError('ACT_TIMEOUT', ['a promise', timeoutMs])));
    work.then(
      (value) => owed.settle(() => got(value)),
      (thrown: unknown) => owed.settle(() => failed(asError(thrown))),
    );
  }

  stop(): void {
    this.cell.endSoon({ kind: 'normal' });
  }

  command<T extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    head: Head,
    refused: (code: string, message: string) => M,
  ): void {
    const owed = this.owe();
    const failed = (thrown: unknown): void => {
      owed.settle(() => refused(codeOf(thrown), asError(thrown).message));
    };
    try {
      this.cell.host.world.post
        .command(this.address, to, type, body, head)
        .then(() => this.cell.forgive(owed.id), failed);
    } catch (thrown) {
      failed(thrown);
    }
  }

  frame<T extends MessageType>(to: Address, type: T, body: Body<T>, head: Head): void {
    this.contained(type, () => this.cell.host.world.post.frame(this.address, to, type, body, head));
  }

  step(gateway: string, frame: StepFrame): void {
    this.contained('step', () => this.cell.host.world.post.step(gateway, frame));
  }

  query<T extends MessageType, R extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    answer: R,
    timeoutMs: number,
    got: (reply: Body<R>) => M,
    failed: (code: string) => M,
  ): void {
    const owed = this.owe();
    const broken = (thrown: unknown): void => {
      owed.settle(() => failed(codeOf(thrown)));
    };
    try {
      this.cell.host.world.post
        .query(this.address, to, type, body, answer, timeoutMs)
        .then((reply) => owed.settle(() => got(reply)), broken);
    } catch (thrown) {
      broken(thrown);
    }
  }

  private owe(): Owed {
    return this.cell.owe();
  }

  private clock(owed: Owed, ms: number, make: () => unknown): void {
    if (owed.settled) return;
    owed.release = this.cell.host.world.setTimer(ms, () => owed.settle(make));
  }

  /** Frames are at most once anyway: a post that throws has lost one more, and that is not the actor's crash. */
  private contained(what: string, send: () => void): void {
    try {
      send();
    } catch (thrown) {
      this.log.error('post failed', { what, code: codeOf(thrown), error: asError(thrown) });
    }
  }
}
