/** Records an actor's life: its behaviour, `ctx` and ports are seen through a door that writes down what goes in and what comes out. */
import type { Address, Body, Head, MessageType, StepFrame } from '../../transport/index.js';
import type { Behaviour, Ctx, ExitReason, Log, Ref, TimerId } from '../kernel/contract.js';
import { encodeValue } from './codec.js';
import { digestOf } from './digest.js';
import { type AnyKind, actorKinds, type KindName, type MadeOf, type MessageOf, type PortsOf } from './kinds.js';
import { type PortCalls, portOf, type Shapes } from './ports.js';
import { type Life, type OutputKind, origins, outputKinds, type RawEntry } from './turn.js';

/** Where entries go. */
export interface Tape {
  /** Version of the code that runs. */
  readonly code: string;
  /** Whether prompts and tokens may be written down. */
  readonly content: boolean;
  /** The entry goes on growing until the turn ends. Must not throw. */
  add(entry: RawEntry): void;
  /** A delivery could not be written down: a hole. */
  failed(actor: string, error: unknown): void;
}

interface Typed {
  readonly type?: unknown;
}

const indexOf = Object.fromEntries(outputKinds.map((kind, index) => [kind, index])) as Readonly<
  Record<OutputKind, number>
>;
const typeOf = (message: unknown): string => {
  const { type } = (message ?? {}) as Typed;
  return typeof type === 'string' ? type : '';
};
const nothing = new Uint8Array(0);

/** What the entry under way has been asked and told. Outside of any there is none: a port that speaks then is not heard. */
class Pen implements PortCalls {
  entry: RawEntry | undefined;
  owed = 0;
  /** How the owed message came that is about to be handled. */
  paid: readonly [outcome: string, value: unknown] | undefined;

  /** `digests`: not where content is withheld, since nobody compares them. */
  constructor(readonly whole: boolean) {}

  answer<T>(letter: string, value: T): T {
    const { entry } = this;
    if (entry !== undefined && this.whole) {
      entry.reads += letter;
      entry.answers.push(value);
    }
    return value;
  }

  output(kind: OutputKind, to: string, type: string, ...said: unknown[]): void {
    this.entry?.outputs.push(indexOf[kind], to, type, this.whole ? digestOf(...said) : 0);
  }

  write(port: string, method: string, args: readonly unknown[]): void {
    this.entry?.outputs.push(indexOf.port, port, method, digestOf(...args));
  }

  read(_method: string, real: (() => unknown) | undefined): unknown {
    return this.answer('p', real?.());
  }
}

/** `ctx` as a recorded actor sees it. */
class RecordingCtx<M> implements Ctx<M> {
  constructor(
    private readonly inner: Ctx<M>,
    private readonly pen: Pen,
  ) {}

  get self(): Ref<M> {
    return this.inner.self;
  }
  get address(): Address {
    return this.inner.address;
  }
  get origin(): number {
    return this.inner.origin;
  }
  get log(): Log {
    return this.inner.log;
  }
  now(): number {
    return this.pen.answer('n', this.inner.now());
  }
  wallTime(): number {
    return this.pen.answer('w', this.inner.wallTime());
  }
  random(): number {
    return this.pen.answer('r', this.inner.random());
  }
  id(): string {
    return this.pen.answer('i', this.inner.id());
  }
  after(ms: number, message: M): TimerId {
    this.pen.owed++;
    this.pen.output('after', '', typeOf(message), ms);
    return this.inner.after(ms, message);
  }
  cancelTimer(timer: TimerId): void {
    this.pen.output('cancelTimer', '', '', timer);
    this.inner.cancelTimer(timer);
  }
  tell<T>(to: Ref<T>, message: T): void {
    this.pen.output('tell', to.path, typeOf(message), message);
    this.inner.tell(to, message);
  }
  ask<T, R>(
    to: Ref<T>,
    build: (replyTo: Ref<R>) => T,
    timeoutMs: number,
    answer: (reply: R) => M,
    late: () => M,
  ): void {
    this.pen.owed++;
    this.inner.ask<T, R>(
      to,
      (replyTo) => {
        const message = build(replyTo);
        this.pen.output('ask', to.path, typeOf(message), timeoutMs, message);
        return message;
      },
      timeoutMs,
      (reply) => this.pays('answer', reply, answer),
      () => this.pays('late', undefined, late),
    );
  }
  watch(target: Ref<never>, onExit: (reason: ExitReason) => M): void {
    this.pen.owed++;
    this.pen.output('watch', target.path, '');
    this.inner.watch(target, (reason) => this.pays('exit', reason, onExit));
  }
  pipe<T>(work: Promise<T>, timeoutMs: number, got: (value: T) => M, failed: (error: Error) => M): void {
    this.pen.owed++;
    this.pen.output('pipe', '', '', timeoutMs);
    this.inner.pipe(
      work,
      timeoutMs,
      (value) => this.pays('got', value, got),
      (error) => this.pays('failed', error, failed),
    );
  }
  stop(): void {
    this.pen.output('stop', '', '');
    this.inner.stop();
  }
  command<T extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    head: Head,
    refused: (code: string, message: string) => M,
  ): void {
    this.pen.owed++;
    this.pen.output('command', to, type, body, head);
    this.inner.command(to, type, body, head, (code, message) =>
      this.pays('refused', [code, message], () => refused(code, message)),
    );
  }
  frame<T extends MessageType>(to: Address, type: T, body: Body<T>, head: Head): void {
    this.pen.output('frame', to, type, body, head);
    this.inner.frame(to, type, body, head);
  }
  step(gateway: string, frame: StepFrame): void {
    this.pen.output('step', gateway, '', frame);
    this.inner.step(gateway, frame);
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
    this.pen.owed++;
    this.pen.output('query', to, type, body, answer, timeoutMs);
    this.inner.query(
      to,
      type,
      body,
      answer,
      timeoutMs,
      (reply) => this.pays('got', reply, got),
      (code) => this.pays('failed', code, failed),
    );
  }

  /** Runs as the kernel makes the message, right before it is handled. */
  private pays<V>(outcome: string, value: V, make: (value: V) => M): M {
    this.pen.paid = [outcome, value];
    return make(value);
  }
}

/** The behaviour of an actor of that kind; what its life is like goes to `tape`, if there is one. */
export function recorded<K extends KindName>(
  tape: Tape | undefined,
  name: K,
  made: MadeOf<K>,
  ports: PortsOf<K>,
): Behaviour<MessageOf<K>, unknown> {
  const kind = actorKinds[name] as unknown as AnyKind;
  const behaviour = (tape === undefined ? kind.make(made, ports) : onTape(tape, name, kind, made, ports)) as unknown;
  return behaviour as Behaviour<MessageOf<K>, unknown>;
}

type Message = { readonly type: string };

function onTape(tape: Tape, name: KindName, kind: AnyKind, made: unknown, ports: unknown): Behaviour<Message, unknown> {
  const whole = tape.content || !kind.content;
  const pen = new Pen(whole);
  const port = (of: string, shapes: Shapes, real: unknown) => portOf(of, shapes, pen, real as Record<string, unknown>);
  const inner = kind.make(made, whole ? port('port', kind.ports, ports) : ports);
  let ctx: RecordingCtx<Message> | undefined;
  let ordinal = 0;

  /** Runs code of the actor with an entry under way. */
  function writing<T>(
    real: Ctx<Message>,
    origin: number,
    type: string,
    what: () => unknown,
    request: string,
    run: (ctx: Ctx<Message>) => T,
  ): T {
    ctx ??= new RecordingCtx(real, pen);
    const { address: actor } = real;
    try {
      pen.entry = {
        actor,
        ordinal: ordinal++,
        origin,
        type,
        input: encoded(what()),
        request,
        reads: '',
        answers: [],
        outputs: [],
      };
      tape.add(pen.entry);
    } catch (error) {
      // The ordinal that is missing names the hole.
      tape.failed(actor, error);
    }
    try {
      return run(ctx);
    } catch (error) {
      pen.output('verdict', '', 'threw');
      throw error;
    } finally {
      pen.entry = undefined;
    }
  }

  function inputOf(message: Message, origin: number): unknown {
    const { paid } = pen;
    pen.paid = undefined;
    if (origin === origins.again) return undefined;
    if (origin === origins.told)
      return whole
        ? (kind.written?.(message) ?? message)
        : kind.essence === undefined
          ? message
          : kind.essence(message);
    if (paid === undefined) return ['timer', undefined];
    return whole ? paid : [paid[0], undefined];
  }

  const { contain, stopped, about = requestOf } = inner;
  return {
    ...inner,
    about: (message) => about.call(inner, message),
    start: (real) =>
      writing(
        real,
        origins.start,
        name,
        () => lifeOf(real),
        '',
        (own) => inner.start(own),
      ),
    handle(state, message, real) {
      if (!whole && kind.essence !== undefined && kind.essence(message) === undefined)
        return inner.handle(state, message, ctx ?? real);
      const own = whole ? (kind.adopt?.(message, port) ?? message) : message;
      const { origin } = real;
      return writing(
        real,
        origin,
        typeOf(message),
        () => inputOf(message, origin),
        kind.request(message),
        (ctx) => inner.handle(state, own, ctx),
      );
    },
    ...(contain && {
      contain(state: unknown, message: Message, failures: number, error: Error, real: Ctx<Message>) {
        const own = whole ? (kind.adopt?.(message, port) ?? message) : message;
        // Part of the life, and an entry of its own: what failed has been written down as it was.
        return writing(
          real,
          origins.contain,
          typeOf(message),
          () => [failures, error],
          kind.request(message),
          (ctx) => {
            const verdict = contain.call(inner, state, own, failures, error, ctx);
            pen.output('verdict', '', verdict);
            return verdict;
          },
        );
      },
    }),
    ...(stopped && {
      stopped(state: unknown, reason: ExitReason, real: Ctx<Message>) {
        writing(
          real,
          origins.stopped,
          reason.kind,
          () => reason,
          '',
          (own) => stopped.call(inner, state, reason, own),
        );
      },
    }),
  };

  function lifeOf(real: Ctx<Message>): Life {
    return { behaviour: name, incarnation: real.self.incarnation, code: tape.code, config: made, whole };
  }
}

const encoded = (value: unknown): Uint8Array => (value === undefined ? nothing : encodeValue(value));

function requestOf(message: unknown): string {
  const { req } = (message ?? {}) as { readonly req?: unknown };
  return typeof req === 'string' ? req : '';
}
