/**
 * Runs an actor again on what its tape says: the same code, the same messages, the same answers; what it says now is compared with what it said
 * then. Nothing leaves: tells, commands and writes to clients end here.
 */
import type { Address, Body, Head, MessageType, StepFrame } from '../../transport/index.js';
import type { Behaviour, Ctx, ExitReason, Log, Ref, TimerId } from '../kernel/contract.js';
import { decodeValue, Named } from './codec.js';
import { digestOf } from './digest.js';
import { type AnyKind, actorKinds, isKind } from './kinds.js';
import { type PortCalls, portOf, type Shapes } from './ports.js';
import { type Entry, type Life, type Output, type OutputKind, origins } from './turn.js';

/** An output with what was said, which only the rerun knows. */
export interface Said extends Output {
  readonly said: readonly unknown[];
}

/** Where the rerun first did something else. */
export interface Difference {
  /** In one sentence. */
  readonly what: string;
  /** Place among the entry's outputs, from 0; undefined: it is no output that differs. */
  readonly at: number | undefined;
  readonly recorded: readonly Output[];
  readonly replayed: readonly Said[];
}

export interface Rerun {
  readonly life: Life;
  /** Of the actor, as it is now. */
  state(): unknown;
  /** The message of an entry, as the actor would get it. */
  message(entry: Entry): unknown;
  /** Runs one entry more. After a difference nothing more can be run. */
  step(entry: Entry): Difference | undefined;
}

type Message = { readonly type: string };
type Make = (...values: never[]) => unknown;

const silent: Log = { debug() {}, info() {}, warn() {}, error() {} };
const typeOf = (message: unknown): string => {
  const { type } = (message ?? {}) as { readonly type?: unknown };
  return typeof type === 'string' ? type : '';
};
const letters: Readonly<Record<string, string>> = { n: 'now', w: 'wallTime', r: 'random', i: 'id', p: 'a port' };

/** It asked for what the tape does not answer. Behaviours may catch it: it is kept, too. */
class Astray extends Error {}

/** The world as the tape has it. */
class TapedWorld implements Ctx<Message>, PortCalls {
  readonly log = silent;
  entry: Entry | undefined;
  astray: string | undefined;
  outputs: Said[] = [];
  private reads = 0;
  private lastOwed = 0;
  private readonly owed = new Map<number, Readonly<Record<string, Make>>>();

  constructor(
    readonly address: Address,
    private readonly incarnation: number,
  ) {}

  get self(): Ref<Message> {
    return new Named(this.address, this.incarnation) as unknown as Ref<Message>;
  }

  get origin(): number {
    return this.entry?.origin ?? 0;
  }

  begin(entry: Entry): void {
    this.entry = entry;
    this.reads = 0;
    this.outputs = [];
  }

  /** The message that was owed, made as it was made then. */
  paid({ origin, input }: Entry): unknown {
    const makers = this.owed.get(origin);
    const [outcome, value] = decodeValue(input) as [string, unknown];
    const make = makers?.[outcome];
    if (make === undefined) throw new Astray(`it waits for nothing with the number ${origin} (${outcome})`);
    this.owed.delete(origin);
    return (make as (value: unknown) => unknown)(value);
  }

  /** What the tape answers to is not asked any more. */
  get unread(): number {
    return (this.entry?.reads.length ?? 0) - this.reads;
  }

  now(): number {
    return this.answer('n') as number;
  }
  wallTime(): number {
    return this.answer('w') as number;
  }
  random(): number {
    return this.answer('r') as number;
  }
  id(): string {
    return this.answer('i') as string;
  }
  after(ms: number, message: Message): TimerId {
    this.output('after', '', typeOf(message), ms);
    return this.owe({ timer: () => message }) as TimerId;
  }
  cancelTimer(timer: TimerId): void {
    this.output('cancelTimer', '', '', timer);
    this.owed.delete(timer);
  }
  tell<T>(to: Ref<T>, message: T): void {
    this.output('tell', to.path, typeOf(message), message);
  }
  ask<T, R>(
    to: Ref<T>,
    build: (replyTo: Ref<R>) => T,
    timeoutMs: number,
    answer: (reply: R) => Message,
    late: () => Message,
  ): void {
    this.owe({ answer, late });
    const replyTo = new Named(`${this.address}/reply`, this.incarnation) as unknown as Ref<R>;
    const message = build(replyTo);
    this.output('ask', to.path, typeOf(message), timeoutMs, message);
  }
  watch(target: Ref<never>, onExit: (reason: ExitReason) => Message): void {
    this.output('watch', target.path, '');
    this.owe({ exit: onExit });
  }
  pipe<T>(_work: Promise<T>, timeoutMs: number, got: (value: T) => Message, failed: (error: Error) => Message): void {
    this.output('pipe', '', '', timeoutMs);
    this.owe({ got, failed });
  }
  stop(): void {
    this.output('stop', '', '');
  }
  command<T extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    head: Head,
    refused: (code: string, message: string) => Message,
  ): void {
    this.output('command', to, type, body, head);
    this.owe({ refused: ([code, message]: readonly [string, string]) => refused(code, message) });
  }
  frame<T extends MessageType>(to: Address, type: T, body: Body<T>, head: Head): void {
    this.output('frame', to, type, body, head);
  }
  step(gateway: string, frame: StepFrame): void {
    this.output('step', gateway, '', frame);
  }
  query<T extends MessageType, R extends MessageType>(
    to: Address,
    type: T,
    body: Body<T>,
    answer: R,
    timeoutMs: number,
    got: (reply: Body<R>) => Message,
    failed: (code: string) => Message,
  ): void {
    this.output('query', to, type, body, answer, timeoutMs);
    this.owe({ got, failed });
  }

  write(port: string, method: string, args: readonly unknown[]): void {
    this.output('port', port, method, ...args);
  }
  read(): unknown {
    return this.answer('p');
  }
  output(kind: OutputKind, to: string, type: string, ...said: unknown[]): void {
    this.outputs.push({ kind, to, type, digest: digestOf(...said), said });
  }

  private owe(makers: Readonly<Record<string, Make>>): number {
    this.owed.set(++this.lastOwed, makers);
    return this.lastOwed;
  }

  private answer(letter: string): unknown {
    const { reads = '', answers = [] } = this.entry ?? {};
    const at = this.reads++;
    if (reads[at] === letter) return answers[at];
    const had = reads[at];
    this.astray ??= `it asks for ${letters[letter]}, and ${had === undefined ? 'asked for nothing more then' : `asked for ${letters[had]} then`}`;
    throw new Astray(this.astray);
  }
}

/**
 * An actor at its start, or why it cannot be run: `entry` is no start, is of an actor that this dynact does not know, or of one whose prompts and
 * tokens are not on the tape.
 */
export function rerun(
  entry: Entry,
  alter: (behaviour: Behaviour<Message, unknown>) => Behaviour<Message, unknown> = (same) => same,
): Rerun | string {
  const life = lifeOf(entry);
  if (typeof life === 'string') return life;
  if (!isKind(life.behaviour)) return `a life of ${life.behaviour.slice(0, 64)}, which this dynact does not know`;
  if (!life.whole) {
    return `${entry.actor} cannot be run again: prompts and tokens are not on this tape (it was recorded with \`tape.level metadata\`, and \`full\` would have kept them)`;
  }
  const kind = actorKinds[life.behaviour] as unknown as AnyKind;
  const world = new TapedWorld(entry.actor as Address, life.incarnation);
  const port = (name: string, shapes: Shapes) => portOf(name, shapes, world);
  const behaviour = alter(kind.make(life.config, port('port', kind.ports)));
  let state: unknown;
  /** Handled last, and those that are to be handled once more. */
  let last: unknown;
  const again: unknown[] = [];

  function told(entry: Entry): unknown {
    const message = decodeValue(entry.input) as Message;
    return kind.adopt?.(message, port) ?? message;
  }

  function handle(entry: Entry): void {
    const { origin } = entry;
    last = origin === origins.told ? told(entry) : origin === origins.again ? again.shift() : world.paid(entry);
    const handled = last as Message;
    if (typeOf(handled) !== entry.type)
      throw new Astray(`its message is ${typeOf(handled)}, and was ${entry.type} then`);
    state = behaviour.handle(state, handled, world);
  }

  const run: Readonly<Record<number, (entry: Entry) => void>> = {
    [origins.start]() {
      state = behaviour.start(world);
    },
    [origins.stopped](entry) {
      behaviour.stopped?.(state, decodeValue(entry.input) as ExitReason, world);
    },
    [origins.contain](entry) {
      const [failures, error] = decodeValue(entry.input) as [number, Error];
      const verdict = behaviour.contain?.(state, last as Message, failures, error, world) ?? 'crash';
      if (verdict === 'retry') again.push(last);
      world.output('verdict', '', verdict);
    },
  };

  return {
    life,
    state: () => state,
    message: (entry) => (entry.origin === origins.told ? decodeValue(entry.input) : undefined),
    step(entry) {
      world.begin(entry);
      let thrown: unknown;
      try {
        (run[entry.origin] ?? handle)(entry);
      } catch (error) {
        thrown = error;
        if (!(error instanceof Astray)) world.output('verdict', '', 'threw');
      }
      return compare(entry, world, thrown);
    },
  };
}

function lifeOf({ origin, input, actor }: Entry): Life | string {
  if (origin !== origins.start) return `not the start of ${actor}`;
  try {
    const life = decodeValue(input) as Partial<Life> | null;
    const { behaviour, incarnation, code, whole } = life ?? {};
    if (
      typeof behaviour === 'string' &&
      typeof incarnation === 'number' &&
      typeof code === 'string' &&
      typeof whole === 'boolean'
    )
      return life as Life;
  } catch {
    // Said below.
  }
  return `the start of ${actor} is not as starts are`;
}

function compare({ outputs: recorded }: Entry, world: TapedWorld, thrown: unknown): Difference | undefined {
  const { outputs: replayed, astray, unread } = world;
  const differs = (what: string, at?: number): Difference => ({ what, at, recorded, replayed });
  for (let at = 0; at < Math.max(recorded.length, replayed.length); at++) {
    const [then, now] = [recorded[at], replayed[at]];
    if (then === undefined) break;
    if (now === undefined) break;
    if (then.kind !== now.kind || then.to !== now.to || then.type !== now.type)
      return differs(`output ${at + 1} is ${shownOutput(now)}, and was ${shownOutput(then)}`, at);
    if (then.digest !== now.digest) return differs(`output ${at + 1}, ${shownOutput(now)}, says something else`, at);
  }
  if (astray !== undefined) return differs(astray);
  if (thrown instanceof Astray) return differs(thrown.message);
  const at = Math.min(recorded.length, replayed.length);
  const [then, now] = [recorded[at], replayed[at]];
  if (now !== undefined) {
    const why = now.type === 'threw' && thrown instanceof Error ? `: ${thrown.message}` : '';
    return differs(`output ${at + 1} is ${shownOutput(now)}${why}, and there was none then`, at);
  }
  if (then !== undefined) return differs(`output ${at + 1} was ${shownOutput(then)}, and there is none now`, at);
  if (unread > 0) return differs(`it asks the world ${unread} times less than then`);
  return undefined;
}

export const shownOutput = ({ kind, to, type }: Output): string =>
  [kind, type, to && `to ${to}`].filter(Boolean).join(' ');

/** The message of an entry, if it is what that output told; content is compared by digest. */
export function toldAs({ origin, type, input }: Entry, output: Output): unknown {
  if (origin !== origins.told || type !== output.type) return undefined;
  const message = decodeValue(input);
  return digestOf(message) === output.digest ? message : undefined;
}
