/**
 * An ordered reader of a stream: a push consumer of its own, without acks, checked for gaps. It is made anew at its cursor after
 * a gap, a missed heartbeat or a reconnect, and from the start if the stream itself was made anew (a memory stream dies
 * with its broker). Written here because the library's ordered consumer pulls (more latency), starts at its old cursor in a new
 * stream (silence for ever) and stops for good when a callback throws.
 */
import { randomBytes } from 'node:crypto';
import { AckPolicy, type ConsumerConfig, DeliverPolicy, type JetStreamManager } from '@nats-io/jetstream';
import {
  createInbox,
  type Msg,
  type MsgHdrs,
  type NatsConnection,
  nanos,
  type Subscription,
} from '@nats-io/transport-node';
import type { BusState, Stop } from '../bus.js';
import { isNetError } from '../errors.js';
import { netError } from './problems.js';
import { StoredTimes } from './stored-times.js';

export interface Followed {
  readonly subject: string;
  readonly seq: number;
  readonly data: Uint8Array;
  readonly ageMs: number;
  /** The broker's wall clock when it was stored, in milliseconds since 1970. */
  readonly storedAt: number;
  /** Parsed on demand: most messages have none that matter. */
  headers(): MsgHdrs | undefined;
}

export interface FollowContext {
  readonly nc: NatsConnection;
  readonly manager: JetStreamManager;
  readonly inbox: string;
  state(): BusState;
  onState(listener: (state: BusState) => void): Stop;
  /** Age of what was stored at a broker's wall clock time in milliseconds. */
  ageMs(storedAt: number): number;
  /** Its wall clock was put back: ages are unknown until it is measured again. */
  clockStepped(): void;
  report(problem: string, error: unknown): void;
  handlerFailed(): void;
}

export interface FollowRequest {
  readonly stream: string;
  readonly filter: string;
  /** `latest`: the last message of each subject, then all that follow. A number: what was stored since, in milliseconds since 1970. */
  readonly from: 'start' | 'new' | 'latest' | number;
  onMessage(message: Followed): void;
  /** The stream was made anew; what it holds now comes from its start. */
  onReset?(): void;
  /** All that was stored when reading began, or began anew, has been delivered. */
  onCaughtUp?(): void;
}

const heartbeatMs = 1_000;
const silenceMs = 2_500;
const retryMs = 100;
const firstMs = 10_000;
const inactiveMs = 10_000;

/** Resolves once the reader stands. Rejects with NET_DENIED at once, with NET_NO_STREAM or what else stands in the way after 10 s. */
export async function follow(context: FollowContext, request: FollowRequest): Promise<Stop> {
  const reader = new Reader(context, request);
  await reader.open();
  return () => reader.stop();
}

class Reader {
  /** Last stream sequence that was handed over. */
  private cursor: number | undefined;
  private created = '';
  private subscription: Subscription | undefined;
  private consumerSeq = 0;
  private times = new StoredTimes();
  private pendingAtStart = 0;
  private heard = performance.now();
  private stopped = false;
  private renewing = false;
  private again = false;
  private monitor: NodeJS.Timeout | undefined;
  private unlisten: Stop | undefined;

  constructor(
    private readonly context: FollowContext,
    private readonly request: FollowRequest,
  ) {}

  async open(): Promise<void> {
    const deadline = performance.now() + firstMs;
    for (;;) {
      try {
        await this.create();
        break;
      } catch (error) {
        const problem = netError(error, this.request.stream);
        if (problem.code === 'NET_DENIED' || this.context.state() === 'closed' || performance.now() > deadline) {
          this.stop();
          throw problem;
        }
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
    this.unlisten = this.context.onState((state) => {
      if (state === 'up') this.renew();
      else if (state === 'closed') this.stop();
    });
    this.monitor = setInterval(() => this.listenForSilence(), heartbeatMs);
    this.monitor.unref();
  }

  stop(): void {
    this.stopped = true;
    clearInterval(this.monitor);
    this.unlisten?.();
    this.leave();
  }

  private leave(): void {
    if (this.subscription && !this.subscription.isClosed()) this.subscription.unsubscribe();
    this.subscription = undefined;
  }

  private listenForSilence(): void {
    const silent = () => performance.now() - this.heard > silenceMs;
    if (!silent()) return;
    // After a freeze of our own the backlog must be read before silence can be judged.
    setImmediate(() =>
      setImmediate(() => {
        if (this.context.state() === 'up' && silent()) this.renew();
      }),
    );
  }

  private renew(): void {
    this.again = true;
    if (this.renewing) return;
    this.renewing = true;
    void this.renewUntilDone();
  }

  private async renewUntilDone(): Promise<void> {
    while (this.again && !this.stopped && this.context.state() !== 'closed') {
      this.again = false;
      try {
        await this.create();
      } catch (error) {
        // Down: coming up again renews the reader.
        if (this.context.state() !== 'up') break;
        if (!isNetError(netError(error, ''), 'NET_NO_STREAM'))
          this.context.report(`reader of ${this.request.stream}`, error);
        this.again = true;
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
    this.renewing = false;
  }

  private async create(): Promise<void> {
    const { manager, nc, inbox } = this.context;
    const { stream, filter, from } = this.request;
    this.leave();
    const info = await manager.streams.info(stream);
    const isNew = this.created !== '' && this.created !== info.created;
    if (isNew) {
      this.cursor = undefined;
      this.guard(() => this.request.onReset?.());
    } else if (this.created === '' && from === 'new') this.cursor = info.state.last_seq;
    this.created = info.created;
    if (this.stopped) return;

    this.times = new StoredTimes();
    this.consumerSeq = 0;
    this.pendingAtStart = Number.POSITIVE_INFINITY;
    this.heard = performance.now();
    const deliver = createInbox(inbox);
    const subscription = nc.subscribe(deliver, { callback: (error, msg) => this.receive(subscription, error, msg) });
    this.subscription = subscription;
    const config: Partial<ConsumerConfig> & { name: string } = {
      name: `r${randomBytes(9).toString('hex')}`,
      deliver_subject: deliver,
      filter_subject: filter,
      ack_policy: AckPolicy.None,
      max_deliver: 1,
      mem_storage: true,
      num_replicas: 1,
      flow_control: true,
      idle_heartbeat: nanos(heartbeatMs),
      inactive_threshold: nanos(inactiveMs),
      ...(this.cursor !== undefined
        ? { deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: this.cursor + 1 }
        : typeof from === 'number'
          ? { deliver_policy: DeliverPolicy.StartTime, opt_start_time: new Date(from).toISOString() }
          : { deliver_policy: from === 'latest' ? DeliverPolicy.LastPerSubject : DeliverPolicy.All }),
    };
    try {
      const consumer = await manager.consumers.add(stream, config);
      // What was delivered before this answer came counts as delivered, not as pending.
      this.pendingAtStart = consumer.num_pending + consumer.delivered.consumer_seq;
      if (this.consumerSeq >= this.pendingAtStart) this.caughtUp();
    } catch (error) {
      this.leave();
      throw error;
    }
  }

  private caughtUp(): void {
    this.pendingAtStart = Number.POSITIVE_INFINITY;
    this.guard(() => this.request.onCaughtUp?.());
  }

  private guard(call: () => void): void {
    try {
      call();
    } catch (error) {
      this.context.handlerFailed();
      this.context.report(`handler of ${this.request.filter}`, error);
    }
  }

  /** Runs inside the socket reader: must not throw. */
  private receive(subscription: Subscription, error: Error | null, msg: Msg): void {
    try {
      if (this.stopped || subscription !== this.subscription) return;
      if (error) throw error;
      this.heard = performance.now();
      if (msg.data.length === 0 && msg.headers?.code === 100) this.control(msg, msg.headers);
      else this.accept(msg);
    } catch (problem) {
      this.context.report(`reader of ${this.request.stream}`, problem);
      this.renew();
    }
  }

  private control(msg: Msg, headers: MsgHdrs): void {
    const stalled = headers.get('Nats-Consumer-Stalled');
    if (stalled) this.context.nc.publish(stalled);
    if (msg.reply) msg.respond();
    const last = headers.get('Nats-Last-Consumer');
    if (last && Number(last) !== this.consumerSeq) this.renew();
  }

  private accept(msg: Msg): void {
    // $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<nanoseconds>.<pending>[.<random>]
    const tokens = (msg.reply ?? '').split('.');
    const base = tokens.length === 9 ? 5 : 7;
    const seq = Number(tokens[base]);
    const consumerSeq = Number(tokens[base + 1]);
    if (!Number.isInteger(seq) || consumerSeq !== this.consumerSeq + 1) {
      this.leave();
      this.renew();
      return;
    }
    this.consumerSeq = consumerSeq;
    this.cursor = seq;
    const storedAt = Number(tokens[base + 2]) / 1e6;
    if (this.times.steppedBack(storedAt)) this.context.clockStepped();
    const ageMs = this.context.ageMs(storedAt);
    this.guard(() =>
      this.request.onMessage({
        subject: msg.subject,
        seq,
        data: msg.data,
        ageMs,
        storedAt,
        headers: () => msg.headers,
      }),
    );
    if (consumerSeq >= this.pendingAtStart) this.caughtUp();
  }
}
