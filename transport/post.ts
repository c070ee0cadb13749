/**
 * Post: how an actor's messages leave the process. It owns envelopes, sequence numbers per (sender, mailbox), the outbox
 * and the subjects; actors name addresses, never subjects.
 */
import { type Address, parts } from './address.js';
import type { Bus } from './bus.js';
import { cut } from './chunks.js';
import { encodeCbor, encodeEnvelope } from './envelope.js';
import { NetError } from './errors.js';
import { budgetMaxMs, chunkBytes, payloadBytes } from './limits.js';
import { type Body, carriers, type MessageType } from './messages.js';
import { createOutbox, type Outbox, type OutboxOptions, type Parcel } from './outbox.js';
import { askOnce } from './queries.js';
import { encodeStep } from './step-frame.js';
import { subjects } from './subjects.js';

/** What every message says beside its body. */
export interface Head {
  /** Request id (minted by the gateway) or '' for messages that belong to none. */
  readonly req: string;
  readonly attempt: number;
  /** Time left for the work this message asks for; wall clocks of hosts are never compared. */
  readonly budgetMs: number;
  /** W3C traceparent. */
  readonly trace?: string;
}

/** A message as it arrives at an actor: the decoded envelope (design 4.2). */
export type Envelope<T extends MessageType = MessageType> = {
  [K in T]: Head & {
    readonly v: 1;
    readonly type: K;
    readonly id: string;
    readonly from: Address;
    readonly to: Address;
    readonly seq: number;
    /** Sender's wall clock, for people only. */
    readonly ts: number;
    readonly body: Body<K>;
  };
}[T];

/** One choice's news in one engine step. */
export interface FrameItem {
  readonly num: number;
  readonly attempt: number;
  readonly choice: number;
  /** Position of `tokens[0]` among the choice's generated tokens; the first is 0. */
  readonly position: number;
  readonly tokens: readonly number[];
  /** `finishCodes`; the tokens come before the end. */
  readonly finish: number;
  /** Present if asked for: one entry per token, [logprob, [token, logprob][]]. */
  readonly logprobs?: readonly (readonly [number, readonly (readonly [number, number])[]])[];
  /** Prompt tokens that came from a cache; on a choice's first frame. */
  readonly cached?: number;
}

/** One engine step's tokens for one gateway: the unit of the data path (design 4.3). */
export interface StepFrame {
  readonly worker: string;
  /** Counts this worker's frames to this gateway; a hole tells the gateway to resync. */
  readonly seq: number;
  readonly items: readonly FrameItem[];
}

export interface Post {
  /** Command into a mailbox. Resolves when stored; rejects with NET_OUTBOX_FULL, NET_REFUSED or NET_TIMEOUT. */
  command<T extends MessageType>(from: Address, to: Address, type: T, body: Body<T>, head: Head): Promise<void>;
  /**
   * Frame to a gateway (`out`), a worker (`ack`) or everybody (`load`, `replica`: the sender's; `down`: `to` is the one that will never speak
   * again); the type decides. Never throws; what cannot be sent is dropped and counted.
   */
  frame<T extends MessageType>(from: Address, to: Address, type: T, body: Body<T>, head: Head): void;
  /** Step frame to `out.<gateway>`. Never throws. */
  step(gateway: string, frame: StepFrame): void;
  /** Query with a deadline; the answer has been checked against its schema. */
  query<T extends MessageType, R extends MessageType>(
    from: Address,
    to: Address,
    type: T,
    body: Body<T>,
    answer: R,
    timeoutMs: number,
  ): Promise<Body<R>>;
}

export interface PostOffice extends Post {
  readonly outbox: Outbox;
  readonly counters: {
    readonly commands: number;
    readonly frames: number;
    readonly steps: number;
    readonly dropped: number;
  };
  /** Rejects what waits in the outbox with NET_CLOSED. The bus stays open. */
  close(): void;
}

/** The post of one process. Everything an incarnation sends must leave through one post: it counts the sequence numbers. */
export function createPost(bus: Bus, options: OutboxOptions = {}): PostOffice {
  const subject = subjects(bus.namespace);
  const outbox = createOutbox(bus, options);
  const counters = { commands: 0, frames: 0, steps: 0, dropped: 0 };
  let ordinal = 0;

  function envelope<T extends MessageType>(
    from: Address,
    to: Address,
    type: T,
    body: Body<T>,
    head: Head,
    seq: number,
  ) {
    ordinal += 1;
    const made = {
      v: 1 as const,
      type,
      id: `${from}:${ordinal}`,
      from,
      to,
      seq,
      req: head.req,
      attempt: head.attempt,
      budgetMs: Math.min(budgetMaxMs, Math.max(0, head.budgetMs)),
      ts: bus.clock.wallTime(),
      body,
    };
    return (head.trace === undefined ? made : { ...made, trace: head.trace }) as typeof made & Envelope;
  }

  function send(to: string, bytes: Uint8Array): boolean {
    if (bytes.length <= payloadBytes) {
      bus.send(to, bytes);
      return true;
    }
    counters.dropped += 1;
    return false;
  }

  function frameSubject(from: Address, to: Address, type: MessageType): string | undefined {
    const target = parts(to);
    if (type === 'Load' || type === 'Replica') {
      const self = parts(from);
      return subject[type === 'Load' ? 'load' : 'replica'](self.component, self.incarnation);
    }
    if (type === 'Down') return subject.down(target.component, target.incarnation);
    if (carriers[type] !== 'frame') return undefined;
    return target.component === 'gateway'
      ? subject.out(target.incarnation)
      : subject.ack(target.component, target.incarnation);
  }

  return {
    outbox,
    counters,
    close: () => outbox.close(),

    command(from, to, type, body, head) {
      try {
        if (carriers[type] !== 'command') throw new TypeError(`${type} is no command`);
        counters.commands += 1;
        return outbox.put(parcel(subject.mail(to), envelope(from, to, type, body, head, outbox.nextSeq())));
      } catch (error) {
        if (error instanceof NetError)
          return Promise.reject(new NetError('NET_REFUSED', { what: error.message }, error));
        return Promise.reject(error);
      }
    },

    frame(from, to, type, body, head) {
      try {
        const target = frameSubject(from, to, type);
        if (target !== undefined && send(target, encodeEnvelope(envelope(from, to, type, body, head, ordinal)))) {
          counters.frames += 1;
        }
      } catch {
        counters.dropped += 1;
      }
    },

    step(gateway, frame) {
      try {
        if (send(subject.out(gateway), encodeStep(frame))) counters.steps += 1;
      } catch {
        counters.dropped += 1;
      }
    },

    query(from, to, type, body, answer, timeoutMs) {
      const head = { req: '', attempt: 0, budgetMs: timeoutMs };
      const question = encodeEnvelope(envelope(from, to, type, body, head, 0));
      return askOnce(bus, subject.query(to), question, answer, timeoutMs);
    },
  };
}

/** What the outbox needs to know of a command. */
function parcel(subject: string, made: Envelope): Parcel {
  const whole = encodeEnvelope(made);
  const base = {
    lane: `${made.from}>${made.to}`,
    subject,
    id: made.id,
    seq: made.seq,
    budgetMs: made.budgetMs,
    bytes: whole.length,
  };
  if (whole.length <= chunkBytes) {
    return {
      ...base,
      first: whole,
      chunks: [],
      encode: (seq, budgetMs) => encodeCbor({ ...made, seq, budgetMs }),
    };
  }
  const { body, ...rest } = made;
  const { chunks, manifest } = cut(made.id, encodeCbor(body));
  const encode = (seq: number, budgetMs: number) => encodeCbor({ ...rest, seq, budgetMs, chunks: manifest });
  return { ...base, first: encode(made.seq, made.budgetMs), chunks, encode };
}
