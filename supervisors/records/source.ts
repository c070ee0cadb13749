/** Where records come from: the streams of a running node, read as an observer, or a file that was exported from them. */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import {
  connectNats,
  decodeCbor,
  encodeCbor,
  matches,
  type NatsBus,
  type NatsOptions,
  readCredentials,
  type Stop,
  type StreamName,
  streamNames,
  subjects,
} from '../../transport/index.js';
import type { ResolvedConfig } from '../config-schema.js';
import { SupervisorError } from '../errors.js';
import { readRecords, recordOf } from './file.js';
import type { StreamFacts, TapeRecord } from './record.js';

export interface Wanted {
  readonly streams: readonly StreamName[];
  /** Stored from then to then, by the broker's clock. */
  readonly since: number;
  readonly until?: number;
  /** Subjects alone that these take; all of the streams if there are none. */
  readonly filters?: readonly string[];
}

export interface Source {
  readonly namespace: string;
  readonly streams: readonly StreamFacts[];
  /** Prompts and tokens may be shown. */
  readonly full: boolean;
  /** Hands over what is there now, stream by stream, each in order. Rejects when anything of it could not be read. */
  read(wanted: Wanted, handler: (record: TapeRecord) => void): Promise<void>;
  close(): Promise<void>;
}

export interface LiveSource extends Source {
  /** What is stored from now on. */
  follow(wanted: Pick<Wanted, 'streams' | 'filters'>, handler: (record: TapeRecord) => void): Promise<Stop>;
}

/** What can be read. JOBS cannot: a second reader of a work queue would rob it; who took a job says so on TAPE. */
export const readable = streamNames.filter((name) => name !== 'JOBS');

const connectMs = 3_000;
/** A reader that has heard nothing for so long will hear nothing. */
const silenceMs = 10_000;

function login({ nats, node }: ResolvedConfig, role: 'observer' | 'node'): NatsOptions {
  const own = nats.url === '';
  return {
    ...(own
      ? readCredentials(join(node.stateDir, 'nats', 'credentials', `${role}.json`))
      : {
          url: nats.url,
          namespace: node.namespace,
          ...(nats.user !== '' && { user: nats.user, password: nats.password }),
        }),
    name: 'dynact-tape',
    connectTimeoutMs: connectMs,
  };
}

async function connect(config: ResolvedConfig, role: 'observer' | 'node'): Promise<NatsBus> {
  let options: NatsOptions;
  try {
    options = login(config, role);
  } catch (error) {
    throw new SupervisorError('SUP_NO_NODE', [config.node.stateDir], error);
  }
  return connectNats(options);
}

/** Rejects with SUP_NO_NODE, or with what keeps the broker from answering. */
export async function openNode(config: ResolvedConfig): Promise<LiveSource> {
  const bus = await connect(config, 'observer');
  try {
    const streams = await Promise.all(readable.map((name) => factsOf(bus, name)));
    return {
      namespace: bus.namespace,
      streams,
      // A stream that holds prompts is on disk with tape level full, and only then.
      full: streams.some(({ name, storage }) => name === 'MAIL' && storage === 'file'),
      async read({ streams: names, since, until, filters }, handler) {
        for (const name of names) {
          // A broker merges nothing: each subject class has a reader, and the stream's numbers put them in order.
          const parts = await Promise.all(
            classesOf(bus, name, filters).map((filter) => readAll(bus, name, filter, since, until)),
          );
          for (const record of parts.length === 1 ? (parts[0] ?? []) : parts.flat().sort((a, b) => a.seq - b.seq))
            handler(record);
        }
      },
      async follow({ streams: names, filters }, handler) {
        const now = Date.now();
        const stops = await Promise.all(
          names.flatMap((name) =>
            classesOf(bus, name, filters).map((filter) =>
              bus.records(
                name,
                filter,
                now,
                (record) => handler(recordFrom(name, record)),
                () => {},
              ),
            ),
          ),
        );
        return () => {
          for (const stop of stops) stop();
        };
      },
      close: () => bus.close(),
    };
  } catch (error) {
    await bus.close();
    throw error;
  }
}

async function factsOf(bus: NatsBus, name: StreamName): Promise<StreamFacts> {
  const { config, state } = await bus.manager.streams.info(subjects(bus.namespace).stream(name));
  return {
    name,
    storage: config.storage === 'file' ? 'file' : 'memory',
    records: state.messages,
    bytes: state.bytes,
    since: state.messages === 0 ? 0 : Date.parse(state.first_ts as unknown as string),
    maxAgeMs: config.max_age / 1e6,
    maxBytes: config.max_bytes,
  };
}

/** Subjects of a stream that a reader may ask for, as far as they are wanted. */
function classesOf(bus: NatsBus, name: StreamName, filters: readonly string[] | undefined): readonly string[] {
  const all = subjects(bus.namespace).stored(name);
  if (filters === undefined) return all;
  return filters.filter((filter) => all.some((each) => filter.startsWith(each.slice(0, -1))));
}

const recordFrom = (
  stream: StreamName,
  { seq, storedAt, subject, data }: { seq: number; storedAt: number; subject: string; data: Uint8Array },
): TapeRecord => ({ stream, seq, at: storedAt, subject, data: Uint8Array.from(data) });

/** What a subject filter has now, oldest first. Rejects when the reader cannot be made, or falls silent before it has caught up. */
function readAll(
  bus: NatsBus,
  stream: StreamName,
  filter: string,
  since: number,
  until = Number.POSITIVE_INFINITY,
): Promise<TapeRecord[]> {
  return new Promise((resolve, reject) => {
    const found: TapeRecord[] = [];
    let stop: Stop | undefined;
    let over = false;
    let heard = performance.now();
    const end = (settle: () => void): void => {
      over = true;
      clearInterval(silence);
      stop?.();
      settle();
    };
    const silence = setInterval(() => {
      if (performance.now() - heard < silenceMs) return;
      const error = new Error(`${stream} was silent for ${silenceMs} ms after ${found.length} records of ${filter}`);
      end(() => reject(error));
    }, 500);
    const caughtUp = () => end(() => resolve(found));
    const handler = (record: Parameters<Parameters<NatsBus['records']>[3]>[0]): void => {
      heard = performance.now();
      if (over) return;
      if (record.storedAt > until) caughtUp();
      else found.push(recordFrom(stream, record));
    };
    bus.records(stream, filter, since, handler, caughtUp).then(
      (stopReading) => {
        stop = stopReading;
        // It may have caught up before it could be stopped.
        if (over) stopReading();
      },
      (error: unknown) => end(() => reject(error)),
    );
  });
}

/** A file of `dynact tape export`, or what was imported of one. Rejects with SUP_TAPE_FILE. */
export async function openFile(path: string): Promise<Source> {
  const records: TapeRecord[] = [];
  let head: Parameters<Parameters<typeof readRecords>[1]>[0] | undefined;
  await readRecords(
    path,
    (read) => {
      head = read;
    },
    (record) => void records.push(record),
  );
  const { namespace, streams, full } = head as NonNullable<typeof head>;
  return sourceOf(namespace, streams, full, records);
}

function sourceOf(
  namespace: string,
  streams: readonly StreamFacts[],
  full: boolean,
  records: readonly TapeRecord[],
): Source {
  return {
    namespace,
    streams,
    full,
    read({ streams: names, since, until = Number.POSITIVE_INFINITY, filters }, handler) {
      for (const record of records) {
        const { stream, at, subject } = record;
        if (!names.includes(stream) || at < since || at > until) continue;
        if (filters === undefined || filters.some((filter) => matches(filter, subject))) handler(record);
      }
      return Promise.resolve();
    },
    close: () => Promise.resolve(),
  };
}

const storeMs = 5_000;
const inFlight = 64;

/** Subject of what was imported under a name: on TAPE, where no actor listens. */
const importSubject = (namespace: string, name: string) => subjects(namespace).tape('node', `import-${name}`);

/**
 * Stores the records of a file on a node's TAPE, as they are and under a name of their own: never in a mailbox, where they would be taken
 * for news. What was imported under that name before is replaced. Resolves with their number; rejects with SUP_TAPE_FILE, before
 * anything is stored, or SUP_TAPE_IMPORT.
 */
export async function importFile(config: ResolvedConfig, path: string, name: string): Promise<number> {
  const file = await openFile(path);
  const records: TapeRecord[] = [];
  await file.read({ streams: streamNames, since: 0 }, (record) => void records.push(record));
  const bus = await connect(config, 'node');
  try {
    const subject = importSubject(bus.namespace, name);
    const id = `import:${name}:${randomUUID()}`;
    const head = { v: 1, type: 'import', namespace: file.namespace, full: file.full, streams: file.streams };
    await bus.store(subject, encodeCbor({ ...head, of: records.length }), id, storeMs, {
      rollup: true,
    });
    for (let from = 0; from < records.length; from += inFlight) {
      const some = records.slice(from, from + inFlight);
      await Promise.all(
        some.map(({ stream, seq, at, subject: was, data }, index) => {
          const record = encodeCbor({ v: 1, type: 'imported', record: [stream, seq, at, was, data] });
          return bus.store(subject, record, `${id}:${from + index}`, storeMs).catch((error: unknown) => {
            const done = 'the records before it were';
            const values = [from + index + 1, path, error instanceof Error ? error.message : String(error), done];
            throw new SupervisorError('SUP_TAPE_IMPORT', values, error);
          });
        }),
      );
    }
    return records.length;
  } finally {
    await bus.close();
  }
}

/** What was imported into a node under a name. Rejects with SUP_TAPE_FILE when there is nothing, or not all of it any more. */
export async function openImported(config: ResolvedConfig, name: string): Promise<Source> {
  const bus = await connect(config, 'observer');
  try {
    const [head, ...stored] = await readAll(bus, 'TAPE', importSubject(bus.namespace, name), 0);
    const { type, namespace, full, streams, of } = (head === undefined ? {} : decodeCbor(head.data)) as Partial<
      Omit<Source, 'read' | 'close'>
    > & { readonly type?: string; readonly of?: number };
    const what = `import ${name}`;
    if (type !== 'import' || namespace === undefined || streams === undefined)
      throw new SupervisorError('SUP_TAPE_FILE', [what, 'record 0: it is not on this node, or not any more']);
    const records = stored.flatMap(({ data }) => {
      const record = recordOf((decodeCbor(data) as { readonly record: readonly unknown[] }).record);
      return record === undefined ? [] : [record];
    });
    if (records.length !== of)
      throw new SupervisorError('SUP_TAPE_FILE', [what, `record ${records.length + 1} of ${of} is not there`]);
    return sourceOf(namespace, streams, full === true, records);
  } finally {
    await bus.close();
  }
}
