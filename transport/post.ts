/**
 * Post: how an actor's messages leave the process. It owns envelopes, sequence numbers per (sender, mailbox), the outbox
 * and the subjects; actors name addresses, never subjects.
 */
import type { Address } from './address.js';
import type { Body, MessageType } from './messages.js';

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
  /** Frame to a gateway (`out`), a worker (`ack`) or everybody (`load`, `down`); the type decides. Never throws. */
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
