/** One connection to the memory broker. */
import type { Bus, BusState, KvEntry, Stop, Stored, TakenJob } from '../bus.js';
import type { Clock } from '../clock.js';
import { NetError } from '../errors.js';
import { payloadBytes } from '../limits.js';
import { matches, type StreamName } from '../subjects.js';
import type { Hop, Hub } from './broker.js';
import type { Asker } from './jobs.js';
import type { Stream } from './stream.js';

export interface Subscription {
  readonly filter: string;
  receive(data: Uint8Array, subject: string): void;
  answer?(data: Uint8Array, subject: string): Uint8Array | Promise<Uint8Array>;
}

export interface Client {
  readonly name: string;
  readonly subscriptions: Set<Subscription>;
  /** Wake its readers and takers when it is connected again. */
  readonly nudges: Set<() => void>;
  turn(state: BusState): void;
  guard(call: () => void): void;
  /** From the broker to it. */
  hear(kind: Hop['kind'], subject: string, arrive: () => void): void;
}

/** A lost hop is repaired within this time: what a reader's heartbeat does on the real broker. */
const heartbeatMs = 1_000;

export function connectClient(hub: Hub, name: string, clock: Clock, begins: BusState): Bus {
  const { bucket, clients } = hub;
  const pending = new Set<(error: NetError) => void>();
  const listeners = new Set<(state: BusState) => void>();
  /** Watches, which begin anew with each connection. */
  const reopened = new Set<() => void>();
  const following = new Set<Stop>();
  const counters = { dropped: 0, handlerErrors: 0, reconnects: 0 };
  let state = begins;

  const say = (kind: Hop['kind'], subject: string, arrive: () => void) =>
    hub.deliver({ kind, client: name, to: 'broker', subject }, () => {
      if (hub.running()) arrive();
    });
  const client: Client = {
    name,
    subscriptions: new Set(),
    nudges: new Set(),
    hear: (kind, subject, arrive) => hub.deliver({ kind, client: name, to: 'client', subject }, arrive),
    guard(call) {
      try {
        call();
      } catch {
        counters.handlerErrors += 1;
      }
    },
    turn(next) {
      if (state === next || state === 'closed') return;
      state = next;
      if (next === 'up') counters.reconnects += 1;
      else {
        const error = new NetError(next === 'down' ? 'NET_DOWN' : 'NET_CLOSED', { what: 'memory' });
        for (const reject of [...pending]) reject(error);
      }
      for (const listener of [...listeners]) client.guard(() => listener(next));
      if (next !== 'up') return;
      for (const begin of reopened) begin();
      for (const nudge of client.nudges) nudge();
    },
  };
  clients.add(client);
  const { hear } = client;

  /** Settles once `work` says so, at the deadline, or when the connection breaks. */
  function waiting<T>(what: string, ms: number, work: (resolve: (v: T) => void, fail: (e: NetError) => void) => void) {
    return new Promise<T>((resolve, reject) => {
      if (state !== 'up') return reject(new NetError(state === 'down' ? 'NET_DOWN' : 'NET_CLOSED', { what }));
      const end = (): void => {
        cancel();
        pending.delete(fail);
      };
      const fail = (error: NetError): void => {
        end();
        reject(error);
      };
      const cancel = clock.setTimer(ms, () => fail(new NetError('NET_TIMEOUT', { ms, what })));
      pending.add(fail);
      work((value) => {
        end();
        resolve(value);
      }, fail);
    });
  }

  function add(subscription: Subscription): Stop {
    client.subscriptions.add(subscription);
    hub.subscribed();
    return () => {
      client.subscriptions.delete(subscription);
      hub.subscribed();
    };
  }

  function tooLarge(data: Uint8Array, what: string): NetError | undefined {
    if (data.length <= payloadBytes) return undefined;
    return new NetError('NET_TOO_LARGE', { bytes: data.length, limit: payloadBytes, what });
  }

  /** At the broker. */
  function stored(stream: Stream, subject: string, seq: number): void {
    if (stream.name === 'JOBS') hub.jobs.pump();
    for (const reader of stream.readers) reader(subject, seq);
  }

  /** At the broker. */
  function publish(subject: string, data: Uint8Array): void {
    const stream = hub.covering(subject);
    if (stream && !hub.full()) {
      const seq = stream.append(subject, data);
      if (typeof seq === 'number') stored(stream, subject, seq);
    }
    for (const { client: other, subscription } of hub.hearing(subject)) {
      other.hear('core', subject, () => {
        if (hub.running() && other.subscriptions.has(subscription))
          other.guard(() => subscription.receive(data, subject));
      });
    }
  }

  /** At the broker: the first that serves the subject answers. */
  function question(subject: string, data: Uint8Array, give: (bytes: Uint8Array) => void, nobody: () => void): void {
    for (const { client: other, subscription } of hub.hearing(subject)) {
      const { answer } = subscription;
      if (!answer) continue;
      other.hear('request', subject, () => {
        const answered = (bytes: Uint8Array) =>
          hub.deliver({ kind: 'reply', client: other.name, to: 'broker', subject }, () => {
            if (hub.running()) give(bytes);
          });
        other.guard(() => {
          const result = answer(data, subject);
          if (result instanceof Uint8Array) answered(result);
          else {
            result.then(answered, (error: unknown) =>
              other.guard(() => {
                throw error;
              }),
            );
          }
        });
      });
      return;
    }
    nobody();
  }

  return {
    namespace: hub.namespace,
    clock,
    counters,
    get state() {
      return state;
    },
    onState(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },

    send(subject, data) {
      if (state !== 'up' || tooLarge(data, subject)) {
        counters.dropped += 1;
        return;
      }
      say('core', subject, () => publish(subject, data));
    },
    subscribe: (subject, handler) => add({ filter: subject, receive: handler }),

    request: (subject, data, timeoutMs) =>
      waiting<Uint8Array>(subject, timeoutMs, (resolve, fail) => {
        const large = tooLarge(data, subject);
        if (large) return fail(large);
        say('request', subject, () =>
          question(
            subject,
            data,
            (bytes) => hear('reply', subject, () => resolve(bytes)),
            () => hear('reply', subject, () => fail(new NetError('NET_NO_RESPONDER', { what: subject }))),
          ),
        );
      }),
    serve: (subject, handler) => add({ filter: subject, receive: () => {}, answer: handler }),

    store: (subject, data, msgId, timeoutMs, options) =>
      waiting<number>(subject, timeoutMs, (resolve, fail) => {
        const large = tooLarge(data, subject);
        if (large) return fail(large);
        say('store', subject, () => {
          const stream = hub.covering(subject);
          const result = !stream
            ? new NetError('NET_NO_STREAM', { what: subject })
            : hub.full()
              ? new NetError('NET_STREAM_FULL', { what: stream.name })
              : stream.append(subject, data, msgId, options);
          if (stream && typeof result === 'number') stored(stream, subject, result);
          hear('ack', subject, () => {
            if (typeof result === 'number') resolve(result);
            else fail(result);
          });
        });
      }),

    async follow(streamName: StreamName, filter: string, from: 'start' | 'new', handler: (message: Stored) => void) {
      const stream = hub.stream(streamName);
      let cursor = from === 'start' ? 0 : stream.lastSeq;
      let stopped = false;
      let beat: Stop = () => {};
      const drain = (): void => {
        while (!stopped && hub.running() && state === 'up') {
          const next = stream.after(cursor);
          if (!next) return;
          cursor = next.seq;
          if (matches(filter, next.subject)) client.guard(() => handler(next));
        }
      };
      const nudge = (): void => {
        if (stream.lastSeq > cursor) hear('deliver', filter, drain);
      };
      const tick = (): void => {
        nudge();
        beat = clock.setTimer(heartbeatMs, tick);
      };
      const reader = (subject: string, seq: number): void => {
        if (matches(filter, subject)) nudge();
        else if (cursor === seq - 1) cursor = seq;
      };
      const stop = () => {
        stopped = true;
        beat();
        stream.readers.delete(reader);
        client.nudges.delete(nudge);
        following.delete(stop);
      };
      stream.readers.add(reader);
      client.nudges.add(nudge);
      following.add(stop);
      tick();
      return stop;
    },

    latest: (streamName, filter) =>
      waiting<Stored[]>(filter, 10_000, (resolve) => {
        say('request', filter, () => {
          const found = hub.stream(streamName).latest(filter);
          hear('reply', filter, () => resolve(found));
        });
      }),
    read<T>(streamName: StreamName, filter: string, pick: (message: Stored) => T | undefined) {
      return waiting<T[]>(filter, 10_000, (resolve) => {
        say('request', filter, () => {
          const stored = hub.stream(streamName).all(filter);
          hear('reply', filter, () => {
            const picked: T[] = [];
            for (const message of stored) {
              client.guard(() => {
                const wanted = pick(message);
                if (wanted !== undefined) picked.push(wanted);
              });
            }
            resolve(picked);
          });
        });
      });
    },

    take(subject, handler) {
      const { jobs } = hub;
      const asker: Asker = {
        subject,
        wanted: 0,
        reachable: () => hub.running() && state === 'up',
        receive: (job) =>
          hear('deliver', subject, () => {
            if (!jobs.askers.has(asker)) return;
            let over = false;
            const end = (how: 'done' | 'giveBack') => () => {
              if (over) return;
              over = true;
              say('ack', subject, () => jobs[how](job.seq));
            };
            const taken: TakenJob = {
              ...job,
              done: end('done'),
              giveBack: end('giveBack'),
              working() {
                if (!over) say('ack', subject, () => jobs.working(job.seq));
              },
            };
            try {
              handler(taken);
            } catch {
              counters.handlerErrors += 1;
              taken.giveBack();
            }
          }),
      };
      jobs.askers.add(asker);
      const nudge = () => jobs.pump();
      client.nudges.add(nudge);
      return {
        want(count) {
          say('request', subject, () => {
            asker.wanted = count;
            jobs.pump();
          });
        },
        stop() {
          jobs.askers.delete(asker);
          client.nudges.delete(nudge);
        },
      };
    },
    backlog: (subject) =>
      waiting<number>(subject, 2_000, (resolve, fail) => {
        say('request', subject, () => {
          const count = hub.jobs.backlog(subject);
          hear('reply', subject, () => {
            if (count === undefined) fail(new NetError('NET_NO_TAKER', { what: subject }));
            else resolve(count);
          });
        });
      }),

    put: (key, value, { lasting = false } = {}) =>
      waiting<number>(key, 2_000, (resolve) => {
        say('lease', key, () => {
          const revision = bucket.put(key, value, lasting);
          hear('ack', key, () => resolve(revision));
        });
      }),
    remove: (key) =>
      waiting<void>(key, 2_000, (resolve) => {
        say('lease', key, () => {
          bucket.remove(key);
          hear('ack', key, resolve);
        });
      }),
    async watch(prefix, handler) {
      const seen = new Map<string, number>();
      let stopped = false;
      const tell = (entry: KvEntry) =>
        hear('watch', entry.key, () => {
          if (stopped || entry.revision <= (seen.get(entry.key) ?? 0)) return;
          seen.set(entry.key, entry.revision);
          client.guard(() => handler(entry));
        });
      let end: Stop = () => {};
      let isReady = (): void => {};
      const ready = new Promise<void>((resolve) => {
        isReady = resolve;
      });
      // From the beginning after each break: what was under way is lost, and what went meanwhile has to be told.
      const begin = (): void => {
        end();
        const { revision } = bucket;
        for (const key of seen.keys()) if (!bucket.has(key)) tell({ key, value: undefined, revision, expired: true });
        end = bucket.watch(prefix, tell);
        hear('watch', prefix, isReady);
      };
      begin();
      reopened.add(begin);
      const stop = () => {
        stopped = true;
        end();
        reopened.delete(begin);
      };
      return { stop, ready };
    },

    flush: () => waiting<void>('flush', 5_000, (resolve) => say('core', '', () => hear('ack', '', resolve))),
    async close() {
      client.turn('closed');
      client.subscriptions.clear();
      hub.subscribed();
      for (const stop of following) stop();
      client.nudges.clear();
      reopened.clear();
      clients.delete(client);
    },
  };
}
