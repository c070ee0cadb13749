/**
 * The bus inside one process: for specs of what stands on it, and for the simulator. Deterministic: no clock and no timer but
 * the injected one, and every hop between a client and the broker goes through `deliver`, where a simulated network may
 * delay, drop, repeat or reorder it.
 */
import type { Bus, BusState, KvEntry, Stop, Stored, StoreOptions } from './bus.js';
import { type Clock, realClock } from './clock.js';
import { NetError } from './errors.js';
import { payloadBytes } from './limits.js';
import { defaultStreamSettings, planStreams } from './streams.js';
import { matches, type StreamName, streamNames, subjects } from './subjects.js';

/** One message's way between a client and the broker. */
export interface Hop {
  readonly kind: 'core' | 'request' | 'reply' | 'store' | 'ack' | 'deliver' | 'lease';
  /** Name of the client at one end; the broker is at the other. */
  readonly client: string;
  readonly subject: string;
}

export interface MemoryBrokerOptions {
  readonly namespace: string;
  readonly clock?: Clock;
  /** Runs `arrive` now, later, twice or never. Default: soon, in order. */
  readonly deliver?: (hop: Hop, arrive: () => void) => void;
  readonly leaseMs?: number;
  /** Most bytes of each stream; default as `streams.ts` plans. */
  readonly maxBytes?: number;
}

export interface MemoryBroker {
  connect(name?: string): Bus;
  /** All connections break, what is stored stays. */
  stop(): void;
  start(): void;
}

interface Kept extends Omit<Stored, 'ageMs'> {
  readonly storedAt: number;
}

interface Stream {
  readonly name: StreamName;
  readonly filters: readonly string[];
  readonly messages: Kept[];
  readonly ids: Map<string, { readonly seq: number; readonly at: number }>;
  readonly maxBytes: number;
  readonly maxAgeMs: number;
  readonly discard: 'new' | 'old';
  readonly windowMs: number;
  lastSeq: number;
  bytes: number;
}

interface Client {
  readonly name: string;
  readonly subscriptions: Set<Subscription>;
  readonly nudges: Set<() => void>;
  readonly pending: Set<(error: NetError) => void>;
  readonly listeners: Set<(state: BusState) => void>;
  state: BusState;
  counters: { dropped: number; handlerErrors: number; reconnects: number };
}

interface Subscription {
  readonly filter: string;
  receive(data: Uint8Array, subject: string): void;
  answer?(data: Uint8Array, subject: string): Uint8Array | Promise<Uint8Array>;
}

interface Leased {
  readonly value: Uint8Array;
  readonly revision: number;
  readonly cancel: Stop;
}

interface Watch {
  readonly prefix: string;
  notify(entry: KvEntry): void;
}

/** A lost hop is repaired within this time: what a reader's heartbeat does on the real broker. */
const heartbeatMs = 1_000;

export function createMemoryBroker(options: MemoryBrokerOptions): MemoryBroker {
  const { namespace } = options;
  const clock = options.clock ?? realClock;
  const deliver = options.deliver ?? ((_hop: Hop, arrive: () => void) => queueMicrotask(arrive));
  const leaseMs = options.leaseMs ?? defaultStreamSettings.leaseMs;
  const s = subjects(namespace);
  const plans = planStreams(namespace, defaultStreamSettings);
  const streams: Stream[] = streamNames.map((name, i) => ({
    name,
    filters: s.stored(name),
    messages: [],
    ids: new Map(),
    maxBytes: options.maxBytes ?? (plans[i]?.maxBytes as number),
    maxAgeMs: plans[i]?.maxAgeMs as number,
    discard: plans[i]?.discard ?? 'old',
    windowMs: plans[i]?.duplicateWindowMs as number,
    lastSeq: 0,
    bytes: 0,
  }));
  const clients = new Set<Client>();
  const bucket = new Map<string, Leased>();
  const watches = new Set<Watch>();
  let revision = 0;
  let running = true;
  let named = 0;

  const covering = (subject: string) => streams.find((stream) => stream.filters.some((f) => matches(f, subject)));

  function shed(stream: Stream, extra: number): void {
    const oldest = clock.now() - stream.maxAgeMs;
    let gone = 0;
    for (const message of stream.messages) {
      const tooMuch = stream.discard === 'old' && stream.bytes + extra > stream.maxBytes;
      if (message.storedAt >= oldest && !tooMuch) break;
      stream.bytes -= message.data.length;
      gone += 1;
    }
    if (gone > 0) stream.messages.splice(0, gone);
    const window = clock.now() - stream.windowMs;
    for (const [id, { at }] of stream.ids) {
      if (at >= window) break;
      stream.ids.delete(id);
    }
  }

  function append(
    stream: Stream,
    subject: string,
    data: Uint8Array,
    msgId?: string,
    { rollup, after }: StoreOptions = {},
  ): number | NetError {
    if (after !== undefined) {
      const last = stream.messages.findLast((message) => message.subject === subject)?.seq ?? 0;
      if (last !== after) return new NetError('NET_CONFLICT', { what: subject });
    }
    shed(stream, data.length);
    const known = msgId === undefined ? undefined : stream.ids.get(msgId);
    if (known) return known.seq;
    if (stream.bytes + data.length > stream.maxBytes) return new NetError('NET_STREAM_FULL', { what: stream.name });
    if (rollup === true) {
      const others = stream.messages.filter((message) => message.subject !== subject);
      stream.messages.splice(0, stream.messages.length, ...others);
      stream.bytes = others.reduce((sum, message) => sum + message.data.length, 0);
    }
    stream.lastSeq += 1;
    stream.bytes += data.length;
    stream.messages.push({ subject, seq: stream.lastSeq, data, storedAt: clock.now() });
    if (msgId !== undefined) stream.ids.set(msgId, { seq: stream.lastSeq, at: clock.now() });
    for (const client of clients) for (const nudge of client.nudges) nudge();
    return stream.lastSeq;
  }

  function guard(client: Client, call: () => void): void {
    try {
      call();
    } catch {
      client.counters.handlerErrors += 1;
    }
  }

  function publish(subject: string, data: Uint8Array): void {
    if (!running) return;
    const stream = covering(subject);
    if (stream) append(stream, subject, data);
    for (const client of clients) {
      for (const subscription of client.subscriptions) {
        if (!matches(subscription.filter, subject)) continue;
        deliver({ kind: 'core', client: client.name, subject }, () => {
          if (running && client.subscriptions.has(subscription))
            guard(client, () => subscription.receive(data, subject));
        });
      }
    }
  }

  function turn(client: Client, state: BusState): void {
    if (client.state === state || client.state === 'closed') return;
    client.state = state;
    if (state !== 'up') {
      const error = new NetError(state === 'down' ? 'NET_DOWN' : 'NET_CLOSED', { what: 'memory' });
      for (const reject of [...client.pending]) reject(error);
    }
    for (const listener of [...client.listeners]) guard(client, () => listener(state));
    if (state === 'up') for (const nudge of client.nudges) nudge();
  }

  function connect(name = `client-${++named}`): Bus {
    const client: Client = {
      name,
      subscriptions: new Set(),
      nudges: new Set(),
      pending: new Set(),
      listeners: new Set(),
      state: running ? 'up' : 'down',
      counters: { dropped: 0, handlerErrors: 0, reconnects: 0 },
    };
    clients.add(client);

    /** Settles once `work` says so, at the deadline, or when the connection breaks. */
    function waiting<T>(
      what: string,
      ms: number,
      work: (resolve: (v: T) => void, fail: (e: NetError) => void) => void,
    ) {
      return new Promise<T>((resolve, reject) => {
        if (client.state !== 'up') {
          return reject(new NetError(client.state === 'down' ? 'NET_DOWN' : 'NET_CLOSED', { what }));
        }
        const end = (): void => {
          cancel();
          client.pending.delete(fail);
        };
        const fail = (error: NetError): void => {
          end();
          reject(error);
        };
        const cancel = clock.setTimer(ms, () => fail(new NetError('NET_TIMEOUT', { ms, what })));
        client.pending.add(fail);
        work((value) => {
          end();
          resolve(value);
        }, fail);
      });
    }
    function add(subscription: Subscription): Stop {
      client.subscriptions.add(subscription);
      return () => client.subscriptions.delete(subscription);
    }
    function tooLarge(data: Uint8Array, what: string): NetError | undefined {
      if (data.length <= payloadBytes) return undefined;
      return new NetError('NET_TOO_LARGE', { bytes: data.length, limit: payloadBytes, what });
    }

    function expire(key: string): void {
      if (!bucket.delete(key)) return;
      notify({ key, value: undefined, revision: ++revision, expired: true });
    }
    function notify(entry: KvEntry): void {
      for (const watch of [...watches]) if (entry.key.startsWith(watch.prefix)) watch.notify(entry);
    }

    return {
      namespace,
      clock,
      counters: client.counters,
      get state() {
        return client.state;
      },
      onState(listener) {
        client.listeners.add(listener);
        return () => client.listeners.delete(listener);
      },

      send(subject, data) {
        if (client.state !== 'up' || tooLarge(data, subject)) {
          client.counters.dropped += 1;
          return;
        }
        deliver({ kind: 'core', client: name, subject }, () => publish(subject, data));
      },
      subscribe: (subject, handler) => add({ filter: subject, receive: handler }),

      request: (subject, data, timeoutMs) =>
        waiting<Uint8Array>(subject, timeoutMs, (resolve, fail) => {
          const large = tooLarge(data, subject);
          if (large) return fail(large);
          deliver({ kind: 'request', client: name, subject }, () => {
            const reply = (run: () => void) => deliver({ kind: 'reply', client: name, subject }, run);
            if (!running) return;
            for (const other of clients) {
              for (const { filter, answer } of other.subscriptions) {
                if (!answer || !matches(filter, subject)) continue;
                guard(other, () => {
                  const result = answer(data, subject);
                  if (result instanceof Uint8Array) reply(() => resolve(result));
                  else {
                    result.then(
                      (bytes) => reply(() => resolve(bytes)),
                      () => {
                        other.counters.handlerErrors += 1;
                      },
                    );
                  }
                });
                return;
              }
            }
            reply(() => fail(new NetError('NET_NO_RESPONDER', { what: subject })));
          });
        }),
      serve: (subject, handler) => add({ filter: subject, receive: () => {}, answer: handler }),

      store: (subject, data, msgId, timeoutMs, options) =>
        waiting<number>(subject, timeoutMs, (resolve, fail) => {
          const large = tooLarge(data, subject);
          if (large) return fail(large);
          deliver({ kind: 'store', client: name, subject }, () => {
            if (!running) return;
            const stream = covering(subject);
            const result = stream
              ? append(stream, subject, data, msgId, options)
              : new NetError('NET_NO_STREAM', { what: subject });
            deliver({ kind: 'ack', client: name, subject }, () => {
              if (typeof result === 'number') resolve(result);
              else fail(result);
            });
          });
        }),

      async follow(streamName, filter, from, handler) {
        const stream = streams.find((candidate) => candidate.name === streamName) as Stream;
        let cursor = from === 'start' ? 0 : stream.lastSeq;
        let stopped = false;
        let beat: Stop = () => {};
        const drain = (): void => {
          if (stopped || !running || client.state !== 'up') return;
          shed(stream, 0);
          for (;;) {
            const next = firstAfter(stream.messages, cursor);
            if (!next) return;
            cursor = next.seq;
            if (!matches(filter, next.subject)) continue;
            const { subject, seq, data, storedAt } = next;
            guard(client, () => handler({ subject, seq, data, ageMs: clock.now() - storedAt }));
            if (stopped) return;
          }
        };
        const nudge = (): void => {
          if (stream.lastSeq > cursor) deliver({ kind: 'deliver', client: name, subject: filter }, drain);
        };
        const tick = (): void => {
          nudge();
          beat = clock.setTimer(heartbeatMs, tick);
        };
        client.nudges.add(nudge);
        tick();
        return () => {
          stopped = true;
          beat();
          client.nudges.delete(nudge);
        };
      },

      latest: (streamName, filter) =>
        waiting<Stored[]>(filter, 10_000, (resolve) => {
          deliver({ kind: 'request', client: name, subject: filter }, () => {
            const stream = streams.find((candidate) => candidate.name === streamName) as Stream;
            shed(stream, 0);
            const last = new Map<string, Kept>();
            for (const kept of stream.messages) if (matches(filter, kept.subject)) last.set(kept.subject, kept);
            const found = [...last.values()].map(({ storedAt, ...kept }) => ({
              ...kept,
              ageMs: clock.now() - storedAt,
            }));
            deliver({ kind: 'reply', client: name, subject: filter }, () => resolve(found));
          });
        }),

      put: (key, value) =>
        waiting<number>(key, 2_000, (resolve) => {
          deliver({ kind: 'lease', client: name, subject: key }, () => {
            if (!running) return;
            bucket.get(key)?.cancel();
            revision += 1;
            bucket.set(key, { value, revision, cancel: clock.setTimer(leaseMs, () => expire(key)) });
            notify({ key, value, revision });
            resolve(revision);
          });
        }),
      remove: (key) =>
        waiting<void>(key, 2_000, (resolve) => {
          deliver({ kind: 'lease', client: name, subject: key }, () => {
            if (!running) return;
            bucket.get(key)?.cancel();
            if (bucket.delete(key)) notify({ key, value: undefined, revision: ++revision });
            resolve();
          });
        }),
      async watch(prefix, handler) {
        const seen = new Map<string, number>();
        const watch: Watch = {
          prefix,
          notify(entry) {
            deliver({ kind: 'deliver', client: name, subject: entry.key }, () => {
              if (!watches.has(watch) || entry.revision <= (seen.get(entry.key) ?? 0)) return;
              if (entry.value) seen.set(entry.key, entry.revision);
              else seen.delete(entry.key);
              guard(client, () => handler(entry));
            });
          },
        };
        watches.add(watch);
        for (const [key, { value, revision: at }] of bucket) {
          if (key.startsWith(prefix)) watch.notify({ key, value, revision: at });
        }
        const ready = new Promise<void>((resolve) => {
          deliver({ kind: 'deliver', client: name, subject: prefix }, resolve);
        });
        return { stop: () => void watches.delete(watch), ready };
      },

      flush: () =>
        waiting<void>('flush', 5_000, (resolve) => deliver({ kind: 'ack', client: name, subject: '' }, resolve)),
      async close() {
        turn(client, 'closed');
        client.subscriptions.clear();
        client.nudges.clear();
        clients.delete(client);
      },
    };
  }

  return {
    connect,
    stop() {
      running = false;
      for (const client of clients) turn(client, 'down');
    },
    start() {
      running = true;
      for (const client of clients) {
        client.counters.reconnects += 1;
        turn(client, 'up');
      }
    },
  };
}

/** The first message after `seq`; messages are in order. */
function firstAfter(messages: readonly Kept[], seq: number): Kept | undefined {
  let low = 0;
  let high = messages.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((messages[middle] as Kept).seq > seq) high = middle;
    else low = middle + 1;
  }
  return messages[low];
}
