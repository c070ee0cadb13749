/**
 * The bus inside one process: for specs of what stands on it, and for the simulator. Deterministic: no clock and no timer but
 * the injected ones, and every hop between a client and the broker goes through `deliver`, where a simulated network may
 * delay, drop, repeat or reorder it, and a frozen client may leave it lying.
 */
import type { Bus } from '../bus.js';
import { type Clock, realClock } from '../clock.js';
import { defaultStreamSettings, planStreams } from '../streams.js';
import { matches, type StreamName, streamNames, subjects } from '../subjects.js';
import { type Bucket, createBucket } from './bucket.js';
import { type Client, connectClient, type Subscription } from './client.js';
import { createWorkQueue, type WorkQueue } from './jobs.js';
import { createStream, type Stream } from './stream.js';

/** One message's way between a client and the broker. */
export interface Hop {
  readonly kind: 'core' | 'request' | 'reply' | 'store' | 'ack' | 'deliver' | 'watch' | 'lease' | 'state';
  /** Name of the client at one end; the broker is at the other. */
  readonly client: string;
  readonly to: 'broker' | 'client';
  readonly subject: string;
}

export type Deliver = (hop: Hop, arrive: () => void) => void;

export interface MemoryBrokerOptions {
  readonly namespace: string;
  /** The broker's, and that of clients that bring none. */
  readonly clock?: Clock;
  /** Runs `arrive` now, later, twice or never. Default: soon, in order. */
  readonly deliver?: Deliver;
  readonly leaseMs?: number;
  /** Most bytes of each stream; default as `streams.ts` plans. */
  readonly maxBytes?: number;
}

export interface MemoryBroker {
  connect(name?: string, clock?: Clock): Bus;
  /** All connections break. What is stored stays, or with `crash` what is stored on disk. */
  stop(how?: 'crash'): void;
  start(): void;
  /** One client's connection breaks, until `mend`. */
  cut(name: string): void;
  mend(name: string): void;
  /** From now on nothing is stored: the disk is full. */
  full(full: boolean): void;
}

/** What a client sees of its broker. */
export interface Hub {
  readonly namespace: string;
  readonly clients: Set<Client>;
  readonly running: () => boolean;
  readonly full: () => boolean;
  readonly deliver: Deliver;
  readonly bucket: Bucket;
  readonly jobs: WorkQueue;
  stream(name: StreamName): Stream;
  /** Which one stores a subject. */
  covering(subject: string): Stream | undefined;
  /** Who hears a subject, in the order of connecting and subscribing. */
  hearing(subject: string): readonly Hearer[];
  /** Somebody subscribes, or does no longer. */
  subscribed(): void;
}

export interface Hearer {
  readonly client: Client;
  readonly subscription: Subscription;
}

/** Subjects whose way is remembered; beyond, all are looked up anew. */
const routesMost = 4_096;

export function createMemoryBroker(options: MemoryBrokerOptions): MemoryBroker {
  const { namespace, clock = realClock } = options;
  // A connection that breaks is known at once unless somebody simulates how it is found out.
  const deliver: Deliver =
    options.deliver ?? (({ kind }, arrive) => (kind === 'state' ? arrive() : queueMicrotask(arrive)));
  const s = subjects(namespace);
  const plans = planStreams(namespace, defaultStreamSettings);
  const streams = new Map(
    streamNames.map((name, i) => {
      const plan = plans[i] as (typeof plans)[number];
      return [name, createStream(name, s.stored(name), plan, options.maxBytes ?? plan.maxBytes, clock)];
    }),
  );
  let running = true;
  let full = false;
  let named = 0;
  const severed = new Set<string>();
  const stores = new Map<string, Stream | undefined>();
  const hearers = new Map<string, Hearer[]>();
  const hub: Hub = {
    namespace,
    clients: new Set(),
    running: () => running,
    full: () => full,
    deliver,
    jobs: createWorkQueue(streams.get('JOBS') as Stream, clock),
    bucket: createBucket(clock, options.leaseMs ?? defaultStreamSettings.leaseMs),
    stream: (name) => streams.get(name) as Stream,
    covering: (subject) =>
      remembered(stores, subject, () => [...streams.values()].find((stream) => stream.covers(subject))),
    hearing: (subject) =>
      remembered(hearers, subject, () =>
        [...hub.clients].flatMap((client) =>
          [...client.subscriptions]
            .filter(({ filter }) => matches(filter, subject))
            .map((subscription) => ({ client, subscription })),
        ),
      ),
    subscribed: () => hearers.clear(),
  };
  const reachable = (client: Client) => running && !severed.has(client.name);
  /** What it finds when it looks is what counts: it may be up again. */
  const look = (client: Client) => {
    deliver({ kind: 'state', client: client.name, to: 'client', subject: '' }, () => {
      client.turn(reachable(client) ? 'up' : 'down');
    });
  };
  const lookAll = (which: (client: Client) => boolean) => {
    for (const client of hub.clients) if (which(client)) look(client);
  };

  return {
    connect: (name = `client-${++named}`, own = clock) =>
      connectClient(hub, name, own, running && !severed.has(name) ? 'up' : 'down'),
    stop(how) {
      running = false;
      if (how === 'crash') for (const stream of streams.values()) if (stream.inMemory) stream.forget();
      lookAll(() => true);
    },
    start() {
      running = true;
      lookAll(() => true);
    },
    cut(name) {
      severed.add(name);
      lookAll((client) => client.name === name);
    },
    mend(name) {
      severed.delete(name);
      lookAll((client) => client.name === name);
    },
    full(is) {
      full = is;
    },
  };
}

function remembered<T>(routes: Map<string, T>, subject: string, find: () => T): T {
  if (routes.has(subject)) return routes.get(subject) as T;
  if (routes.size >= routesMost) routes.clear();
  const found = find();
  routes.set(subject, found);
  return found;
}
