/**
 * The taker's end of the work queue: one durable consumer per subject, which all takers of that subject share, and pull requests for as many
 * jobs as are wanted. Written here because the library's consumer prefetches, and what lies in a buffer is taken by nobody else.
 */
import { AckPolicy, DeliverPolicy } from '@nats-io/jetstream';
import { createInbox, type Msg, nanos, type Subscription } from '@nats-io/transport-node';
import type { Stop, TakenJob, Taker } from '../bus.js';
import { jobAckWaitMs } from '../streams.js';
import type { FollowContext } from './follow.js';
import { netError } from './problems.js';

export interface TakeRequest {
  /** The broker's name of the stream. */
  readonly stream: string;
  readonly subject: string;
  onJob(job: TakenJob): void;
}

/** How long the broker keeps a request for jobs. */
const pullMs = 20_000;
/** After this, an answer to one was lost. */
const patienceMs = 5_000;
const retryMs = 250;
/** A queue without takers is forgotten by the broker; its jobs stay. */
const inactiveMs = 60_000;
const mostTaken = 10_000;

/** Requests for jobs, in the order in which the broker serves and ends them. */
interface Pull {
  left: number;
  readonly sentAt: number;
}

/** Name of the consumer that takes a subject's jobs. */
export const takerName = (subject: string): string => subject.slice(subject.lastIndexOf('.') + 1);

export function take(context: FollowContext, request: TakeRequest): Taker {
  const { nc, manager, inbox } = context;
  const { stream, subject } = request;
  const name = takerName(subject);
  const next = `$JS.API.CONSUMER.MSG.NEXT.${stream}.${name}`;
  const deliver = createInbox(inbox);
  let pulls: Pull[] = [];
  let wanted = 0;
  let ready = false;
  let opening = false;
  let stopped = false;

  function say(reply: string | undefined, what: string): void {
    if (reply === undefined || context.state() !== 'up') return;
    try {
      nc.publish(reply, what);
    } catch (error) {
      context.report(`answer to a job of ${subject}`, error);
    }
  }

  async function open(): Promise<void> {
    if (opening || stopped) return;
    opening = true;
    ready = false;
    pulls = [];
    while (!ready && !stopped && context.state() === 'up') {
      try {
        await manager.consumers.add(stream, {
          durable_name: name,
          filter_subject: subject,
          ack_policy: AckPolicy.Explicit,
          deliver_policy: DeliverPolicy.All,
          ack_wait: nanos(jobAckWaitMs),
          max_ack_pending: mostTaken,
          mem_storage: true,
          num_replicas: 1,
          inactive_threshold: nanos(inactiveMs),
        });
        ready = true;
      } catch (error) {
        const problem = netError(error, stream);
        if (problem.code === 'NET_DENIED') stopped = true;
        if (problem.code !== 'NET_NO_STREAM') context.report(`taker of ${subject}`, problem);
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
    opening = false;
    pump();
  }

  function pump(): void {
    if (!ready || stopped || context.state() !== 'up') return;
    const now = performance.now();
    while (pulls[0] !== undefined && now - pulls[0].sentAt > pullMs + patienceMs) pulls.shift();
    const missing = wanted - pulls.reduce((sum, { left }) => sum + left, 0);
    if (missing <= 0) return;
    try {
      nc.publish(next, JSON.stringify({ batch: missing, expires: nanos(pullMs) }), { reply: deliver });
      pulls.push({ left: missing, sentAt: now });
    } catch (error) {
      context.report(`taker of ${subject}`, error);
    }
  }

  function accept(msg: Msg): void {
    const first = pulls[0];
    if (first !== undefined && --first.left <= 0) pulls.shift();
    wanted = Math.max(0, wanted - 1);
    // $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<nanoseconds>.<pending>[.<random>]
    const tokens = (msg.reply ?? '').split('.');
    const base = tokens.length === 9 ? 5 : 7;
    let over = false;
    const end = (what: string) => () => {
      if (over) return;
      over = true;
      say(msg.reply, what);
    };
    const job: TakenJob = {
      subject: msg.subject,
      seq: Number(tokens[base]),
      data: msg.data,
      ageMs: context.ageMs(Number(tokens[base + 2]) / 1e6),
      deliveries: Number(tokens[base - 1]),
      done: end('+ACK'),
      giveBack: end('-NAK'),
      working() {
        if (!over) say(msg.reply, '+WPI');
      },
    };
    try {
      request.onJob(job);
    } catch (error) {
      context.handlerFailed();
      context.report(`handler of ${subject}`, error);
      job.giveBack();
    }
  }

  /** Runs inside the socket reader: must not throw. */
  const receive = (error: Error | null, msg: Msg): void => {
    try {
      if (stopped) return;
      if (error) throw error;
      const code = msg.data.length === 0 ? msg.headers?.code : undefined;
      if (code === undefined || code === 0) {
        accept(msg);
        return;
      }
      if (code === 100) return;
      // 408: it waited long enough. Anything else means that the consumer is gone, or the stream with it.
      pulls.shift();
      if (code === 408) pump();
      else void open();
    } catch (problem) {
      context.report(`taker of ${subject}`, problem);
    }
  };
  const subscription: Subscription = nc.subscribe(deliver, { callback: receive });
  const unlisten = context.onState((state) => {
    if (state === 'up') void open();
    else ready = false;
  });
  void open();

  const stop: Stop = () => {
    stopped = true;
    unlisten();
    if (!subscription.isClosed()) subscription.unsubscribe();
  };
  return {
    want(count) {
      wanted = count;
      pump();
    },
    stop,
  };
}
