/** `dynact tape`: the records that the streams of a node hold, as they are. */
import { type RecordParts, recordParts } from '../../supervisors/index.js';
import { configurationOf } from './settings.js';
import { type SourceOptions, sourceOf } from './source.js';
import { table } from './trace.js';
import { UsageError } from './usage.js';

export interface TapeOptions extends SourceOptions {
  readonly component?: string;
  readonly actor?: string;
  readonly req?: string;
  readonly type?: string;
  readonly since?: string;
  readonly stream?: string;
  readonly limit?: string;
  readonly json?: true;
  readonly as?: string;
}

type Read = ReturnType<RecordParts['readRecord']>;
type Wanted = Parameters<Awaited<ReturnType<RecordParts['openNode']>>['read']>[0];

const defaultLimit = 100;

/** Prints what is there now, oldest first: the last `--limit` of what passes. */
export async function ls(options: TapeOptions, matching: (line: string) => boolean = () => true): Promise<void> {
  const parts = await recordParts();
  const { pass, wanted } = await filterOf(options);
  const limit = limitOf(options);
  const source = await sourceOf(options);
  const kept: { readonly at: number; readonly line: string }[] = [];
  const unreadable: string[] = [];
  let left = 0;
  const keep = (read: Read): void => {
    const line = lineOf(parts, read, source.full, options.json === true);
    if (!matching(line)) return;
    kept.push({ at: read.record.at, line });
  };
  try {
    await source.read(wanted, (record) => {
      const read = parts.readRecord(record);
      if (read.content.kind === 'unreadable') unreadable.push(`${record.stream} ${record.seq}: ${read.content.why}`);
      if (pass(read)) keep(read);
    });
    // Streams were read one after the other.
    kept.sort((a, b) => a.at - b.at);
    left = Math.max(0, kept.length - limit);
    for (const { line } of kept.slice(left)) process.stdout.write(`${line}\n`);
  } finally {
    await source.close();
  }
  if (left > 0) process.stderr.write(`${left} earlier records are not shown: --limit 0 shows all\n`);
  complain(unreadable);
}

/** `ls` of the records whose line matches. */
export async function grep(pattern: string, options: TapeOptions): Promise<void> {
  let wanted: RegExp;
  try {
    wanted = new RegExp(pattern, 'i');
  } catch (error) {
    throw new UsageError(`not a regular expression: ${error instanceof Error ? error.message : pattern}`);
  }
  await ls({ limit: '0', ...options }, (line) => wanted.test(line));
}

/** Prints what comes, until it is interrupted. */
export async function tail(options: TapeOptions): Promise<void> {
  const parts = await recordParts();
  const { pass, wanted } = await filterOf(options);
  const { config } = await configurationOf({ stateDir: options.stateDir });
  const source = await parts.openNode(config);
  // Before the first record: whoever has seen one may interrupt at once.
  const interrupted = new Promise<void>((resolve) => {
    process.once('SIGINT', resolve);
    process.once('SIGTERM', resolve);
    // Who reads has gone.
    process.stdout.once('error', () => resolve());
  });
  const stop = await source.follow(wanted, (record) => {
    const read = parts.readRecord(record);
    if (pass(read)) process.stdout.write(`${lineOf(parts, read, source.full, options.json === true)}\n`);
  });
  await interrupted;
  stop();
  await source.close();
}

/** What each stream holds, and for how long. */
export async function streams(options: TapeOptions): Promise<void> {
  const source = await sourceOf(options);
  await source.close();
  if (options.json) {
    process.stdout.write(
      `${JSON.stringify({ namespace: source.namespace, full: source.full, streams: source.streams })}\n`,
    );
    return;
  }
  const rows = source.streams.map(({ name, storage, records, bytes, since, maxAgeMs, maxBytes }) => [
    name,
    storage,
    String(records),
    `${(bytes / 1024).toFixed(0)} KiB`,
    since === 0 ? 'empty' : new Date(since).toISOString(),
    `${maxAgeMs / 60_000} min`,
    `${maxBytes / 1024 / 1024} MiB`,
  ]);
  const titles = ['stream', 'kept in', 'records', 'size', 'oldest', 'kept for', 'at most'];
  process.stdout.write(`${table(titles, rows, new Set([2, 3])).join('\n')}\n`);
  process.stdout.write(
    source.full
      ? 'prompts and tokens are recorded, on disk, and shown\n'
      : 'prompts and tokens are in memory only, are not shown and not exported (tape.level full records them)\n',
  );
}

/** Writes records to a file of their own. */
export async function exportTo(path: string, options: TapeOptions): Promise<void> {
  const parts = await recordParts();
  const { pass, wanted } = await filterOf(options, true);
  const source = await sourceOf(options);
  try {
    const { namespace, full, streams: held } = source;
    const records: Read['record'][] = [];
    await source.read(wanted, (record) => {
      if (pass(parts.readRecord(record))) records.push(record);
    });
    records.sort((a, b) => a.at - b.at);
    const file = await parts.writeRecords(path, { namespace, at: Date.now(), full, streams: held });
    for (const record of records) await file.write(full ? record : parts.redact(record));
    const bytes = await file.end();
    const without = full ? '' : ', without prompts and tokens (tape.level is not full)';
    process.stderr.write(`${records.length} records, ${bytes} bytes in ${path}${without}\n`);
  } finally {
    await source.close();
  }
}

/** Stores a file's records on the node's TAPE, for `--imported`. */
export async function importFrom(path: string, options: TapeOptions): Promise<void> {
  const name = options.as ?? 'file';
  if (!/^[A-Za-z0-9-]{1,32}$/.test(name)) throw new UsageError(`--as ${name}: 1 to 32 letters, digits and -`);
  const { config } = await configurationOf({ stateDir: options.stateDir });
  const count = await (await recordParts()).importFile(config, path, name);
  process.stderr.write(`${count} records imported: read them with --imported ${name}, as long as TAPE keeps them\n`);
}

/** Not of this node's doing; a file that is imported twice need not hold what was imported before. */
const foreign = new Set(['import', 'imported']);

/** Load reports come four times a second from everybody, and so do turns about no request: shown when asked for, and exported. */
async function filterOf(options: TapeOptions, whole = false): Promise<{ wanted: Wanted; pass(read: Read): boolean }> {
  const { complaintAbout, passes, readable, sinceOf, streamsOf } = await recordParts();
  const complaint = complaintAbout(options);
  if (complaint !== undefined) throw new UsageError(complaint);
  const names = options.stream === undefined ? readable : streamsOf(options.stream);
  if (names === undefined)
    throw new UsageError(
      `--stream ${options.stream}: of ${readable.join(', ')}, with commas (JOBS is a work queue: reading it would rob it)`,
    );
  const since = options.since === undefined ? 0 : sinceOf(options.since, Date.now());
  if (since === undefined)
    throw new UsageError(`--since ${options.since}: like 90s, 5m, 2h, 1d, or 2026-01-31T12:00:00Z`);
  const meant = passes(options);
  const asked = options.type?.toLowerCase();
  const idle = ({ type, requests }: Read) => type === 'Load' || (type === 'turn' && requests.length === 0);
  const hidden = (read: Read) => foreign.has(read.type) || (idle(read) && !whole);
  return {
    wanted: { streams: names, since },
    pass: (read) => meant(read) && (read.type.toLowerCase() === asked || !hidden(read)),
  };
}

function limitOf({ limit }: TapeOptions): number {
  const count = limit === undefined ? defaultLimit : Number(limit);
  if (!Number.isInteger(count) || count < 0) throw new UsageError(`--limit ${limit}: a count; 0 = all`);
  return count === 0 ? Number.POSITIVE_INFINITY : count;
}

function lineOf({ toJson }: RecordParts, read: Read, full: boolean, json: boolean): string {
  const object = toJson(read, full);
  if (json) return JSON.stringify(object);
  const { stream, seq, at, type, from, to, attempt, content, error } = object;
  const who = to === undefined ? from : `${from} → ${to}`;
  const whose = read.requests.length === 1 ? ` ${read.requests[0]}${attempt === undefined ? '' : `#${attempt}`}` : '';
  const body = (content as { readonly body?: unknown } | undefined)?.body ?? content;
  return `${at} ${stream} ${seq} ${type} ${who}${whose} ${error === undefined ? JSON.stringify(body) : `! ${error}`}`;
}

const complaints = 10;

function complain(unreadable: readonly string[]): void {
  if (unreadable.length === 0) return;
  process.stderr.write(`${unreadable.length} records cannot be read:\n`);
  for (const each of unreadable.slice(0, complaints)) process.stderr.write(`  ${each}\n`);
  if (unreadable.length > complaints) process.stderr.write(`  … --type unreadable --limit 0 shows all\n`);
  process.exitCode = 1;
}
