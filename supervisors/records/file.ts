/**
 * Records in a file. After the line `dynact-tape 1` come frames of
 *
 *   length (4 bytes, big endian) · digest (8 bytes) · CBOR (length bytes)
 *
 * where the digest is the start of SHA-256 over the digest before it (zeros at first) and the CBOR bytes: a record that was changed, moved,
 * left out or added is found at its place. The first frame is a map {v, namespace, node, at, level, streams}; the others are arrays
 * [stream, seq, stored at, subject, payload]; the last is a map {end: number of records}, without which the file was cut short.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import { chmod } from 'node:fs/promises';
import { finished } from 'node:stream/promises';
import { decodeCbor, encodeCbor, type StreamName, streamNames } from '../../transport/index.js';
import { SupervisorError } from '../errors.js';
import type { StreamFacts, TapeRecord } from './record.js';

export interface FileHead {
  readonly namespace: string;
  /** When it was written, milliseconds since 1970. */
  readonly at: number;
  /** Whether prompts and tokens are in it. */
  readonly full: boolean;
  readonly streams: readonly StreamFacts[];
}

const magic = 'dynact-tape ';
const version = 1;
const headBytes = 12;
const digestBytes = 8;
/** A payload of the broker's largest size, and what is around it. */
const largest = 2 * 1024 * 1024;

const chained = (before: Uint8Array, bytes: Uint8Array): Uint8Array =>
  createHash('sha256').update(before).update(bytes).digest().subarray(0, digestBytes);

export interface RecordWriter {
  /** Resolves when there is room for more. */
  write(record: TapeRecord): Promise<void>;
  /** Resolves with the bytes written, once all are in the file. */
  end(): Promise<number>;
}

/** A new file, for its owner's eyes; it must not exist. Rejects with what the file system says. */
export async function writeRecords(path: string, head: FileHead): Promise<RecordWriter> {
  const out = createWriteStream(path, { mode: 0o600, flags: 'wx' });
  await once(out, 'open');
  await chmod(path, 0o600);
  let digest: Uint8Array = new Uint8Array(digestBytes);
  let count = 0;
  const put = async (value: unknown): Promise<void> => {
    const bytes = encodeCbor(value);
    digest = chained(digest, bytes);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    if (!out.write(Buffer.concat([length, digest, bytes]))) await once(out, 'drain');
  };
  out.write(`${magic}${version}\n`);
  await put({ v: version, ...head });
  return {
    write({ stream, seq, at, subject, data }) {
      count += 1;
      return put([stream, seq, at, subject, data]);
    },
    async end() {
      await put({ end: count });
      out.end();
      await finished(out);
      return out.bytesWritten;
    },
  };
}

/**
 * Reads a file from its start to its end; the handler gets each record as soon as it is known to be whole. Rejects with SUP_TAPE_FILE, which
 * names the record and its offset in bytes, when anything is wrong with it: what was handed over before is what stands before that place.
 */
export async function readRecords(
  path: string,
  begin: (head: FileHead) => void,
  handler: (record: TapeRecord) => void,
): Promise<void> {
  let offset = 0;
  let records = 0;
  let head: FileHead | undefined;
  let ended = false;
  let digest: Uint8Array = new Uint8Array(digestBytes);
  const wrong = (what: string, cause?: unknown) =>
    new SupervisorError('SUP_TAPE_FILE', [path, `record ${records + 1} at byte ${offset}: ${what}`], cause);

  function frame(bytes: Buffer, sum: Buffer): void {
    if (ended) throw wrong('there is more after the end');
    const want = chained(digest, bytes);
    if (!sum.equals(want)) throw wrong('its digest does not match: it was changed, moved or left out');
    digest = want;
    let value: unknown;
    try {
      value = decodeCbor(bytes);
    } catch (error) {
      throw wrong('not CBOR', error);
    }
    if (head === undefined) {
      head = headOf(value);
      if (head === undefined) throw wrong('not the head of a file of records');
      begin(head);
    } else if (Array.isArray(value)) {
      const record = recordOf(value);
      if (record === undefined) throw wrong('not a record of a stream of dynact');
      records += 1;
      handler(record);
    } else {
      const { end } = (value ?? {}) as { readonly end?: unknown };
      if (end !== records) throw wrong(`the file was closed after ${String(end).slice(0, 16)} records`);
      ended = true;
    }
  }

  let rest: Buffer = Buffer.alloc(0);
  let begun = false;
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 })) {
      rest = rest.length === 0 ? (chunk as Buffer) : Buffer.concat([rest, chunk as Buffer]);
      if (!begun) {
        const line = rest.subarray(0, 32).indexOf(10);
        if (line < 0 && rest.length < 32) continue;
        checkMagic(path, rest.subarray(0, Math.max(0, line)).toString('latin1'));
        begun = true;
        offset = line + 1;
        rest = rest.subarray(offset);
      }
      let at = 0;
      while (rest.length - at >= headBytes) {
        const length = rest.readUInt32BE(at);
        if (length > largest) throw wrong(`${length} bytes long, ${largest} is the most: damaged`);
        if (rest.length - at < headBytes + length) break;
        const body = at + headBytes;
        frame(rest.subarray(body, body + length), rest.subarray(at + 4, body));
        at = body + length;
        offset += headBytes + length;
      }
      rest = rest.subarray(at);
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined || error instanceof SupervisorError) throw error;
    throw new SupervisorError('SUP_TAPE_FILE', [path, 'cannot be read'], error);
  }
  if (!begun) checkMagic(path, rest.toString('latin1'));
  if (rest.length > 0) throw wrong(`the file ends within it, ${rest.length} bytes after its start: it was cut short`);
  if (!ended) throw wrong('the file ends here without saying so: it was cut short');
}

function checkMagic(path: string, line: string): void {
  if (!line.startsWith(magic))
    throw new SupervisorError('SUP_TAPE_FILE', [path, 'byte 0: not a file of `dynact tape export`']);
  if (line !== `${magic}${version}`)
    throw new SupervisorError('SUP_TAPE_FILE', [
      path,
      `byte 0: version ${line.slice(magic.length)}, and this dynact reads version ${version}: read it with the dynact that wrote it`,
    ]);
}

function headOf(value: unknown): FileHead | undefined {
  const { v, namespace, at, full, streams } = (value ?? {}) as Partial<FileHead> & { readonly v?: unknown };
  const known = v === version && typeof namespace === 'string' && typeof at === 'number' && typeof full === 'boolean';
  return known && Array.isArray(streams) ? { namespace, at, full, streams: streams as StreamFacts[] } : undefined;
}

export function recordOf(value: readonly unknown[]): TapeRecord | undefined {
  const [stream, seq, at, subject, data] = value;
  const isRecord =
    streamNames.some((name) => name === stream) &&
    Number.isSafeInteger(seq) &&
    typeof at === 'number' &&
    typeof subject === 'string' &&
    data instanceof Uint8Array;
  if (!isRecord) return undefined;
  // A copy: it must outlive the buffer it was read into.
  return { stream: stream as StreamName, seq: seq as number, at, subject, data: Uint8Array.from(data) };
}
