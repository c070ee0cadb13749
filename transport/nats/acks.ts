/**
 * JetStream publishes and their answers. The client library's own request costs several promises, a timer and an error with a
 * stack trace for each message, which is most of what a command costs its sender; here one subscription hears all answers and one
 * timer watches all deadlines.
 */
import { JetStreamApiError } from '@nats-io/jetstream';
import {
  createInbox,
  headers,
  type Msg,
  type NatsConnection,
  type PermissionViolationError,
} from '@nats-io/transport-node';
import type { Stop, StoreOptions } from '../bus.js';
import { NetError } from '../errors.js';
import { netError } from './problems.js';

export interface Acks {
  /** Resolves with the stream's sequence number once stored; rejects with a NetError. */
  publish(subject: string, data: Uint8Array, msgId: string, timeoutMs: number, options?: StoreOptions): Promise<number>;
  /** Rejects everything that waits: the connection broke. */
  abort(error: NetError): void;
  /** The broker refused to take a message of ours; it names the subject and sends no answer. */
  denied(error: PermissionViolationError): void;
  stop: Stop;
}

interface Waiting {
  readonly subject: string;
  readonly timeoutMs: number;
  readonly deadline: number;
  resolve(seq: number): void;
  reject(error: NetError): void;
}

interface Answer {
  readonly seq?: number;
  readonly error?: { readonly code: number; readonly err_code: number; readonly description: string };
}

/** How late a deadline may be noticed. */
const sweepMs = 50;
const noResponders = 503;

export function openAcks(
  nc: NatsConnection,
  inbox: string,
  guarded: (receive: (msg: Msg) => void) => (msg: Msg) => void,
): Acks {
  const base = `${createInbox(inbox)}.`;
  const waiting = new Map<string, Waiting>();
  let count = 0;
  let timer: NodeJS.Timeout | undefined;

  const take = (token: string): Waiting | undefined => {
    const entry = waiting.get(token);
    if (entry !== undefined) waiting.delete(token);
    return entry;
  };
  const receive = guarded((msg) => {
    const entry = take(msg.subject.slice(base.length));
    if (entry === undefined) return;
    const { subject } = entry;
    if (msg.data.length === 0 && msg.headers?.code === noResponders) {
      entry.reject(new NetError('NET_NO_STREAM', { what: subject }));
      return;
    }
    try {
      const { seq, error } = msg.json<Answer>();
      if (error !== undefined) entry.reject(netError(new JetStreamApiError(error), subject));
      else if (typeof seq === 'number') entry.resolve(seq);
      else entry.reject(new NetError('NET_REFUSED', { what: `${subject}: an answer without a sequence number` }));
    } catch (error) {
      entry.reject(netError(error, subject));
    }
  });
  const subscription = nc.subscribe(`${base}*`, {
    callback: (error, msg) => {
      if (error === null) receive(msg);
    },
  });

  /** Runs only while something waits. */
  function watch(): void {
    timer ??= setInterval(() => {
      const now = performance.now();
      for (const [token, { deadline, subject, timeoutMs, reject }] of waiting) {
        if (now < deadline) continue;
        waiting.delete(token);
        reject(new NetError('NET_TIMEOUT', { ms: timeoutMs, what: subject }));
      }
      if (waiting.size > 0) return;
      clearInterval(timer);
      timer = undefined;
    }, sweepMs);
  }

  return {
    publish(subject, data, msgId, timeoutMs, options) {
      return new Promise((resolve, reject) => {
        const token = (++count).toString(36);
        const marks = headers();
        marks.set('Nats-Msg-Id', msgId);
        if (options?.rollup === true) marks.set('Nats-Rollup', 'sub');
        if (options?.after !== undefined) marks.set('Nats-Expected-Last-Subject-Sequence', String(options.after));
        try {
          nc.publish(subject, data, { headers: marks, reply: base + token });
        } catch (error) {
          reject(netError(error, subject));
          return;
        }
        waiting.set(token, { subject, timeoutMs, deadline: performance.now() + timeoutMs, resolve, reject });
        watch();
      });
    },
    abort(error) {
      const lost = [...waiting.values()];
      waiting.clear();
      for (const { reject } of lost) reject(error);
    },
    denied(error) {
      if (error.operation !== 'publish') return;
      for (const [token, { subject, reject }] of waiting) {
        if (subject !== error.subject) continue;
        waiting.delete(token);
        reject(netError(error, subject));
      }
    },
    stop() {
      clearInterval(timer);
      if (!subscription.isClosed()) subscription.unsubscribe();
    },
  };
}
