/**
 * One life of one actor: its mailbox, its state and its end. Everything that reaches a behaviour goes through `deliver`,
 * and `handling` is true exactly while a behaviour's code runs.
 *
 *     running ──stop()──▶ draining ──mailbox empty──▶ ended
 *        └──── crash, kill, ctx.stop, deadline ──────────┘
 */
import type { Address } from '../../transport/index.js';
import type { Cell, Host } from './cell.js';
import type { Behaviour, Ctx, ExitReason } from './contract.js';
import type { Runnable } from './dispatcher.js';
import { Door } from './door.js';
import { ActorError, asError } from './errors.js';
import { Again, Failures } from './failures.js';
import { Mailbox } from './mailbox.js';
import { Owed } from './owed.js';
import { Target } from './target.js';

const defaultCapacity = 10_000;
/** An actor that waits for more than this many timers, answers and results has a leak. */
const owedLimit = 65_536;
/** A turn ends after this long even if its batch is not done: sockets and other actors come first. */
const sliceMs = 5;

// The types M and S meet only inside `spawn`; to the kernel all cells are alike.
type AnyBehaviour = Behaviour<unknown, unknown>;

export class ActorCell extends Target implements Cell, Runnable {
  /** Lazily made, since most actors have none. */
  private watchers: Set<Owed> | undefined;
  private exitWaiters: ((reason: ExitReason) => void)[] | undefined;
  private deadlines: (() => void)[] | undefined;
  private owed: Map<number, Owed> | undefined;
  private lastOwed = 0;
  private failures: Failures | undefined;

  private readonly mailbox = new Mailbox();
  private readonly ctx: Ctx<unknown>;
  private phase: 'running' | 'draining' | 'ended' = 'running';
  private state: unknown;
  private started = false;
  private handling = false;
  private scheduled = false;
  origin = 0;
  /** Set by what must wait until the current message is done. */
  private ending: ExitReason | undefined;
  reason: ExitReason | undefined;

  constructor(
    readonly host: Host,
    private readonly behaviour: AnyBehaviour,
    readonly address: Address,
    incarnation: number,
  ) {
    super(address, incarnation);
    this.ctx = new Door(this);
  }

  get depth(): number {
    return this.mailbox.length;
  }

  /** First code of the behaviour. */
  begin(): void {
    this.guarded('start', () => {
      this.state = synchronous(this.behaviour.start(this.ctx), this.behaviour, 'start');
      this.started = true;
    });
  }

  accept(message: unknown): boolean {
    if (this.phase !== 'running') {
      const stale = this.phase === 'ended' && this.host.lives(this.path);
      this.host.deadLetter(this.path, message, stale ? 'stale' : 'stopped');
      return false;
    }
    const capacity = this.behaviour.capacity ?? defaultCapacity;
    if (this.mailbox.length >= capacity) {
      this.host.deadLetter(this.path, message, 'full');
      if (this.behaviour.overflow === 'crash') {
        this.endSoon({ kind: 'error', error: new ActorError('ACT_MAILBOX_FULL', [this.path, capacity]) });
      }
      return false;
    }
    this.enqueue(message);
    return true;
  }

  run(batch: number): boolean {
    if (this.handling) throw new ActorError('ACT_REENTRANT', [this.path]);
    const { world } = this.host;
    const until = world.now() + sliceMs;
    for (let handled = 0; handled < batch && this.mailbox.length > 0; handled++) {
      this.deliver(this.mailbox.shift());
      if (this.phase === 'ended') return false;
      if (world.now() >= until) break;
    }
    if (this.mailbox.length > 0) return true;
    this.scheduled = false;
    if (this.phase === 'draining') this.end({ kind: 'shutdown' });
    return false;
  }

  /** Finishes the mailbox, then ends; at the deadline ends anyway. */
  drain(deadlineMs: number): void {
    if (this.phase === 'ended') return;
    if (this.phase === 'running') {
      this.phase = 'draining';
      this.voidOwed(false);
      if (!this.handling && this.mailbox.length === 0) {
        this.end({ kind: 'shutdown' });
        return;
      }
    }
    if (deadlineMs === Number.POSITIVE_INFINITY) return;
    this.deadlines ??= [];
    this.deadlines.push(this.host.world.setTimer(deadlineMs, () => this.endSoon({ kind: 'killed' })));
  }

  endSoon(reason: ExitReason): void {
    if (this.handling) this.ending ??= reason;
    else this.end(reason);
  }

  exit(): Promise<ExitReason> {
    if (this.reason !== undefined) return Promise.resolve(this.reason);
    return new Promise((resolve) => {
      this.exitWaiters ??= [];
      this.exitWaiters.push(resolve);
    });
  }

  owe(): Owed {
    const owed = new Owed(this, ++this.lastOwed);
    if (this.phase !== 'running') {
      owed.void();
      return owed;
    }
    this.owed ??= new Map();
    if (this.owed.size >= owedLimit) throw new ActorError('ACT_OWED_LIMIT', [this.path, owedLimit]);
    this.owed.set(owed.id, owed);
    return owed;
  }

  forgive(id: number): void {
    const owed = this.owed?.get(id);
    if (owed === undefined) return;
    this.owed?.delete(id);
    owed.void();
  }

  paid(owed: Owed): void {
    this.enqueue(owed);
  }

  override watchedBy(owed: Owed, message: (reason: ExitReason) => unknown): void {
    if (this.reason !== undefined) {
      const reason = this.reason;
      owed.settle(() => message(reason));
      return;
    }
    this.watchers ??= new Set();
    const { watchers } = this;
    owed.onExit = message;
    owed.release = () => watchers.delete(owed);
    watchers.add(owed);
  }

  private enqueue(message: unknown): void {
    this.mailbox.push(message);
    if (this.scheduled) return;
    this.scheduled = true;
    this.host.dispatcher.schedule(this);
  }

  private deliver(raw: unknown): void {
    this.guarded('handle', () => {
      let message = raw;
      let failures = 0;
      this.origin = 0;
      if (raw instanceof Again) {
        ({ message, failures } = raw);
        this.origin = -1;
      } else if (raw instanceof Owed) {
        this.owed?.delete(raw.id);
        if (raw.isVoid) return;
        this.origin = raw.id;
        message = raw.make();
      }
      this.host.counters.delivered++;
      try {
        const next = this.behaviour.handle(this.state, message, this.ctx);
        if (next !== this.state) this.state = synchronous(next, this.behaviour, 'handle');
      } catch (thrown) {
        if (!this.contained(message, failures, asError(thrown))) throw thrown;
      }
    });
  }

  /** Whether the actor can go on without what the message was about: its behaviour says so. */
  private contained(message: unknown, before: number, error: Error): boolean {
    const { contain, about = requestOf } = this.behaviour;
    const subject = contain === undefined ? '' : about.call(this.behaviour, message);
    const { type } = (message ?? {}) as { readonly type?: unknown };
    if (contain === undefined || subject === '' || typeof type !== 'string') return false;
    this.failures ??= new Failures();
    const failures = this.failures.count(subject, type, before);
    const verdict = contain.call(this.behaviour, this.state, message, failures, error, this.ctx);
    if (verdict === 'crash') return false;
    this.host.log.error('message failed', { actor: this.path, failures, verdict, error });
    if (verdict === 'retry') this.enqueue(new Again(message, failures));
    else this.host.deadLetter(this.path, message, 'failed', error);
    return true;
  }

  /** Runs the behaviour's code; whatever it throws ends the actor, and so does what asked for the end meanwhile. */
  private guarded(what: 'start' | 'handle', code: () => void): void {
    this.handling = true;
    try {
      code();
    } catch (thrown) {
      this.ending = { kind: 'error', error: asError(thrown) };
    }
    this.handling = false;
    if (this.ending === undefined) return;
    if (this.ending.kind === 'error') {
      this.host.log.error('actor failed', { actor: this.path, during: what, error: this.ending.error });
    }
    this.end(this.ending);
  }

  private end(reason: ExitReason): void {
    if (this.phase === 'ended') return;
    this.phase = 'ended';
    this.reason = reason;
    if (reason.kind === 'error') this.host.counters.crashes++;
    for (const cancel of this.deadlines ?? []) cancel();
    this.voidOwed(true);
    if (this.started) this.lastWords(reason);
    this.state = undefined;
    this.host.dispatcher.forget(this);
    this.host.gone(this);
    while (this.mailbox.length > 0) {
      const raw = this.mailbox.shift();
      const message = raw instanceof Again ? raw.message : raw;
      if (!(message instanceof Owed)) this.host.deadLetter(this.path, message, 'stopped');
    }
    this.mailbox.clear();
    for (const owed of this.watchers ?? []) {
      const { onExit } = owed;
      if (onExit !== undefined) owed.settle(() => onExit(reason));
    }
    for (const resolve of this.exitWaiters ?? []) resolve(reason);
    this.watchers = undefined;
    this.exitWaiters = undefined;
    this.deadlines = undefined;
  }

  private lastWords(reason: ExitReason): void {
    this.handling = true;
    try {
      // A promise would outlive the actor: reported like a throw, and its rejection is not left unhandled.
      synchronous(this.behaviour.stopped?.(this.state, reason, this.ctx), this.behaviour, 'stopped');
    } catch (thrown) {
      this.host.log.error('last words failed', { actor: this.path, error: asError(thrown) });
    }
    this.handling = false;
  }

  /** `all`: also what waits in the mailbox already. */
  private voidOwed(all: boolean): void {
    for (const [id, owed] of this.owed ?? []) {
      if (!all && owed.settled) continue;
      this.owed?.delete(id);
      owed.void();
    }
  }
}

function requestOf(message: unknown): string {
  const { req } = (message ?? {}) as { readonly req?: unknown };
  return typeof req === 'string' ? req : '';
}

/** Behaviours are synchronous: the kernel has no use for a promise, and an actor waiting inside one could be re-entered. */
function synchronous<T>(value: T, behaviour: AnyBehaviour, where: string): T {
  if (typeof (value as { readonly then?: unknown } | null | undefined)?.then !== 'function') return value;
  Promise.resolve(value).catch(() => undefined);
  throw new ActorError('ACT_ASYNC', [behaviour.name, where]);
}
