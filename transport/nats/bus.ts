/**
 * The bus on NATS. Every trap of the client is sprung here and nowhere else: callbacks are guarded (an exception in one ends the socket
 * reader for good), nothing is published while disconnected (it would vanish), reconnecting never gives up, and a watchdog
 * replaces a connection that no longer answers.
 */
import { JetStreamApiError, type JetStreamClient, type JetStreamManager, jetstream } from '@nats-io/jetstream';
import { headers, type Msg, type NatsConnection, PermissionViolationError } from '@nats-io/transport-node';
import type { Bus, BusState, Stop, Stored } from '../bus.js';
import { realClock } from '../clock.js';
import { NetError } from '../errors.js';
import { type StreamName, type Subjects, subjects } from '../subjects.js';
import { openAcks } from './acks.js';
import { type DialOptions, dial, inboxPrefix, reconnectWaitMs } from './dial.js';
import { follow } from './follow.js';
import { netError, withoutJetStream } from './problems.js';
import { storedIn, watchKeys } from './reads.js';
import { take, takerName } from './take.js';
import { watchConnection } from './watchdog.js';

export interface NatsOptions extends DialOptions {
  readonly namespace: string;
  /**
   * The bus is down when the broker has been silent for this long, default 1,000; a connection that is silent for three times as long
   * is replaced.
   */
  readonly silentMs?: number;
}

export interface NatsBus extends Bus {
  readonly connection: NatsConnection;
  readonly manager: JetStreamManager;
  /**
   * For people who read streams back: as `follow`, from a time of the broker's clock on (milliseconds since 1970, 0 = the start), with when
   * each message was stored; `caughtUp` is called when all that was there has been handed over, and again after a broker lost its memory.
   */
  records(
    stream: StreamName,
    filter: string,
    since: number,
    handler: (record: Stored & { readonly storedAt: number }) => void,
    caughtUp: () => void,
  ): Promise<Stop>;
}

const closeMs = 2_000;
const kvMs = 2_000;
const silentMs = 1_000;
/** Every how many looks of the watchdog JetStream is asked whether it is there, and for the broker's clock. */
const jetstreamEvery = 8;
const calibrateEvery = 80;
const jetstreamMs = 1_000;
/** Sent and not yet confirmed by a pong. Above `most`, core messages are dropped rather than buffered. */
const buffered = { step: 4 * 1024 * 1024, most: 64 * 1024 * 1024 } as const;

/** Connects and checks version and JetStream. Rejects with NET_UNAUTHORIZED, NET_NO_JETSTREAM, NET_VERSION_TOO_OLD or NET_TIMEOUT. */
export async function connectNats(options: NatsOptions): Promise<NatsBus> {
  const { connection, manager } = await dial(options);
  return createBus(connection, manager, options);
}

const notUp = (state: BusState, what: string): NetError =>
  new NetError(state === 'down' ? 'NET_DOWN' : 'NET_CLOSED', { what });

function createBus(nc: NatsConnection, manager: JetStreamManager, options: NatsOptions): NatsBus {
  const s: Subjects = subjects(options.namespace);
  const js: JetStreamClient = jetstream(nc, { timeout: 5_000 });
  const counters = { dropped: 0, handlerErrors: 0, reconnects: 0 };
  const listeners = new Set<(state: BusState) => void>();
  /** Rejects what waits for an answer that a broken connection can no longer bring. */
  const pending = new Set<(error: NetError) => void>();
  /** Broker's wall clock minus our monotonic one, in milliseconds. */
  let brokerOffset: number | undefined;
  let state: BusState = 'up';
  /** The connection is broken; the library dials. */
  let lost = false;
  /** Connected, and nothing comes. */
  let silent = false;
  let welcoming = false;
  let unconfirmed = 0;
  let sinceFlush = 0;

  function report(problem: string, error: unknown): void {
    try {
      options.onProblem?.(problem, error);
    } catch {
      // The last resort must not fail.
    }
  }
  function guarded<A extends unknown[]>(problem: string, call: (...args: A) => void): (...args: A) => void {
    return (...args) => {
      try {
        call(...args);
      } catch (error) {
        counters.handlerErrors += 1;
        report(problem, error);
      }
    };
  }
  const acks = openAcks(nc, inboxPrefix(options.user ?? 'dynact'), (receive) => guarded('answer to a store', receive));
  function turn(next: BusState): void {
    if (state === next || state === 'closed') return;
    state = next;
    if (next !== 'up') {
      const error = notUp(next, options.url);
      for (const reject of [...pending]) reject(error);
      acks.abort(error);
      unconfirmed = 0;
      sinceFlush = 0;
    }
    for (const listener of [...listeners]) guarded('state listener', listener)(next);
  }
  /** Settles with `work`, or as soon as the connection breaks. */
  function whileUp<T>(what: string, work: () => Promise<T>, ms?: number): Promise<T> {
    if (state !== 'up') return Promise.reject(notUp(state, what));
    return new Promise<T>((resolve, reject) => {
      const fail = (error: NetError): void => {
        pending.delete(fail);
        reject(error);
      };
      pending.add(fail);
      work().then(
        (value) => {
          pending.delete(fail);
          resolve(value);
        },
        (error: unknown) => fail(netError(error, what, ms)),
      );
    });
  }

  async function askJetStream(timeout: number): Promise<void> {
    const answer = await nc.request('$JS.API.INFO', undefined, { timeout });
    const { error } = answer.json<{ error?: { code: number; err_code: number; description: string } }>();
    if (error !== undefined) throw new JetStreamApiError(error);
  }
  /** Up again only once JetStream answers: it may still be recovering its streams. */
  async function welcome(): Promise<void> {
    if (welcoming) return;
    welcoming = true;
    let told = false;
    while (state === 'down' && !lost && !nc.isClosed()) {
      try {
        // With little patience: while JetStream recovers, a question can vanish.
        await askJetStream(500);
        if (lost || silent) continue;
        counters.reconnects += 1;
        turn('up');
        void calibrate();
      } catch (error) {
        const problem = netError(error, options.url);
        if (!told && withoutJetStream.has(problem.code)) {
          told = true;
          report('jetstream', new NetError('NET_NO_JETSTREAM', { url: options.url }, error));
        }
        await new Promise((resolve) => setTimeout(resolve, reconnectWaitMs));
      }
    }
    welcoming = false;
  }
  async function watchStatus(): Promise<void> {
    for await (const status of nc.status()) {
      if (status.type === 'disconnect' || status.type === 'staleConnection') {
        lost = true;
        turn('down');
      } else if (status.type === 'reconnect') {
        lost = false;
        silent = false;
        turn('down');
        void welcome();
      } else if (status.type === 'error') {
        if (status.error instanceof PermissionViolationError) acks.denied(status.error);
        report('connection', status.error);
      }
    }
  }
  watchStatus().catch((error) => report('status', error));
  nc.closed().then(
    () => turn('closed'),
    () => turn('closed'),
  );

  /** A server whose JetStream has ended (its disk is full, or it was started anew without) is as good as none. */
  async function checkJetStream(): Promise<void> {
    try {
      await askJetStream(jetstreamMs);
    } catch (error) {
      if (state !== 'up' || lost || !withoutJetStream.has(netError(error, '').code)) return;
      turn('down');
      void welcome();
    }
  }
  /** Measures the broker's clock against ours; only a quick answer is a good measurement. */
  async function calibrate(): Promise<void> {
    try {
      const before = performance.now();
      const info = await manager.streams.info(s.stream('MAIL'));
      const after = performance.now();
      const broker = Date.parse((info as { ts?: string }).ts ?? '');
      if (!Number.isNaN(broker) && (after - before < 50 || brokerOffset === undefined)) {
        brokerOffset = broker - (before + after) / 2;
      }
    } catch {
      // No stream yet; the next look tries again.
    }
  }
  function ageMs(storedAt: number): number {
    return brokerOffset === undefined ? 0 : Math.max(0, performance.now() + brokerOffset - storedAt);
  }

  let looked = 0;
  const stopWatchdog = watchConnection(nc, options.silentMs ?? silentMs, {
    broken: () => lost || nc.isClosed(),
    silent() {
      silent = true;
      turn('down');
    },
    heard() {
      // It was frozen, and all that it had taken from us is on its way.
      silent = false;
      void welcome();
    },
    givenUp(ms) {
      lost = true;
      report('watchdog', new NetError('NET_TIMEOUT', { ms: Math.round(ms), what: 'ping' }));
      turn('down');
      nc.reconnect().catch(() => {});
    },
    look() {
      if (state !== 'up') return;
      looked += 1;
      if (looked % jetstreamEvery === 0) void checkJetStream();
      if (brokerOffset === undefined || looked % calibrateEvery === 0) void calibrate();
    },
  });
  void calibrate();

  function sent(bytes: number): void {
    unconfirmed += bytes;
    sinceFlush += bytes;
    if (sinceFlush < buffered.step) return;
    const confirmed = sinceFlush;
    sinceFlush = 0;
    nc.flush().then(
      () => {
        unconfirmed = Math.max(0, unconfirmed - confirmed);
      },
      () => {},
    );
  }

  function listen(subject: string, onMessage: (msg: Msg) => void): Stop {
    const subscription = nc.subscribe(subject, {
      callback: guarded(`handler of ${subject}`, (error: Error | null, msg: Msg) => {
        if (error) report(`subscription ${subject}`, netError(error, subject));
        else onMessage(msg);
      }),
    });
    return () => {
      if (!subscription.isClosed()) subscription.unsubscribe();
    };
  }

  const context = {
    nc,
    manager,
    inbox: inboxPrefix(options.user ?? 'dynact'),
    state: () => state,
    onState: (listener: (state: BusState) => void): Stop => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    ageMs,
    clockStepped() {
      brokerOffset = undefined;
      void calibrate();
    },
    report,
    handlerFailed: () => {
      counters.handlerErrors += 1;
    },
  };

  return {
    connection: nc,
    manager,
    namespace: options.namespace,
    clock: realClock,
    counters,
    get state() {
      return state;
    },
    onState: context.onState,

    send(subject, data) {
      if (state !== 'up' || unconfirmed > buffered.most) {
        counters.dropped += 1;
        return;
      }
      try {
        nc.publish(subject, data);
        sent(data.length);
      } catch (error) {
        counters.dropped += 1;
        report(`send to ${subject}`, error);
      }
    },
    subscribe: (subject, handler) => listen(subject, (msg) => handler(msg.data, msg.subject)),

    request: (subject, data, timeoutMs) =>
      whileUp(
        subject,
        async () => (await nc.request(subject, data, { timeout: Math.max(1, timeoutMs) })).data,
        timeoutMs,
      ),
    serve: (subject, handler) =>
      listen(subject, (msg) => {
        const answer = handler(msg.data, msg.subject);
        if (answer instanceof Uint8Array) msg.respond(answer);
        else {
          answer
            .then(guarded(`answer on ${subject}`, (bytes: Uint8Array) => void msg.respond(bytes)))
            .catch((error) => {
              counters.handlerErrors += 1;
              report(`handler of ${subject}`, error);
            });
        }
      }),

    store(subject, data, msgId, timeoutMs, options) {
      if (state !== 'up') return Promise.reject(notUp(state, subject));
      return acks.publish(subject, data, msgId, Math.max(1, timeoutMs), options);
    },
    follow: (stream, filter, from, handler) =>
      follow(context, {
        stream: s.stream(stream),
        filter,
        from,
        onMessage: (m) => handler({ subject: m.subject, seq: m.seq, data: m.data, ageMs: m.ageMs }),
      }),

    records: (stream, filter, since, handler, caughtUp) =>
      follow(context, {
        stream: s.stream(stream),
        filter,
        from: since > 0 ? since : 'start',
        onMessage: handler,
        onCaughtUp: caughtUp,
      }),

    latest: (stream, filter) => whileUp(filter, () => storedIn(context, s.stream(stream), filter, 'latest', (m) => m)),
    read: (stream, filter, pick) => whileUp(filter, () => storedIn(context, s.stream(stream), filter, 'start', pick)),

    put(key, value, { lasting = false } = {}) {
      const h = headers();
      if (lasting) h.set('Nats-TTL', 'never');
      const options = { timeout: kvMs, ...(lasting ? { headers: h } : {}) };
      return whileUp(key, async () => (await js.publish(s.key(key), value, options)).seq, kvMs);
    },
    async remove(key) {
      const h = headers();
      h.set('KV-Operation', 'DEL');
      await whileUp(key, () => js.publish(s.key(key), new Uint8Array(0), { headers: h, timeout: kvMs }), kvMs);
    },
    take: (subject, handler) => take(context, { stream: s.stream('JOBS'), subject, onJob: handler }),
    backlog: (subject) =>
      whileUp(
        subject,
        async () => (await manager.consumers.info(s.stream('JOBS'), takerName(subject))).num_pending,
        kvMs,
      ),

    watch: (prefix, handler) => watchKeys(context, s, prefix, handler),

    async flush() {
      await whileUp('flush', () => nc.flush());
    },
    async close() {
      stopWatchdog();
      if (nc.isClosed()) return turn('closed');
      const timer = new Promise<void>((resolve) => setTimeout(resolve, closeMs).unref());
      if (state === 'up') await Promise.race([nc.drain().catch(() => {}), timer]);
      turn('closed');
      acks.stop();
      if (!nc.isClosed()) await nc.close().catch(() => {});
    },
  };
}
