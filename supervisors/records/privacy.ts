/**
 * What of a record people may see. Prompts and tokens are shown, and written to files, only on a node whose tape level is `full`
 * (design 4.4); otherwise their number is all that is left of them.
 */
import { decodeCbor, encodeCbor, encodeStep } from '../../transport/index.js';
import { type Read, readRecord, type TapeRecord } from './record.js';

/** Fields that hold prompts, tokens or what gives them away, wherever they stand in a body. */
const secret = new Set(['prompt', 'generated', 'tokens', 'token', 'grammar', 'logprobs', 'logitBias', 'cacheSalt']);

/** `tokens: 64` is a count, `token: 64` is one. */
const isSecret = (name: string, value: unknown) => secret.has(name) && (typeof value !== 'number' || name === 'token');

/** Longer lists of anything are shown by their length. */
const shownItems = 32;

/** A value as JSON has it: bytes and long lists by their size, and without secrets unless `full`. */
function shown(value: unknown, full: boolean, name = ''): unknown {
  if (!full && isSecret(name, value)) return sizeOf(value);
  if (typeof value === 'bigint') return value.toString();
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  if (ArrayBuffer.isView(value)) return Array.from(value as unknown as Uint32Array);
  if (Array.isArray(value)) {
    return value.length > shownItems && !full ? `${value.length} items` : value.map((each) => shown(each, full));
  }
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, shown(each, full, key)]));
}

function sizeOf(value: unknown): unknown {
  if (ArrayBuffer.isView(value) || Array.isArray(value)) return `${(value as ArrayLike<unknown>).length} withheld`;
  return value === '' ? '' : 'withheld';
}

/** The record as one JSON object. */
export function toJson(read: Read, full: boolean): Readonly<Record<string, unknown>> {
  const { record, type, from, to, requests, attempt, content } = read;
  const { stream, seq, at, subject, data } = record;
  return {
    stream,
    seq,
    at: new Date(at).toISOString(),
    subject,
    type,
    from,
    ...(to !== '' && { to }),
    ...(requests.length > 0 && { requests: requests.length > shownItems ? `${requests.length} requests` : requests }),
    ...(attempt !== undefined && { attempt }),
    bytes: data.length,
    ...(content.kind === 'unreadable' ? { error: content.why } : { content: shown(contentOf(read), full) }),
  };
}

function contentOf({ content }: Read): unknown {
  switch (content.kind) {
    case 'message':
      return content.message;
    case 'step': {
      const { worker, seq, items } = content.frame;
      return { worker, seq, items };
    }
    case 'routes':
      return content.routes;
    case 'turn':
      return content.turn;
    case 'journal':
      return content.journal;
    case 'dead':
      return content.letter;
    case 'map':
      return content.map;
    case 'unreadable':
      return undefined;
  }
}

/** The same record without prompts and tokens: their places hold zeros, so that whatever counts them counts right. */
export function redact(record: TapeRecord): TapeRecord {
  const { content } = readRecord(record);
  switch (content.kind) {
    case 'step': {
      const items = content.frame.items.map(({ logprobs: _, ...item }) => ({
        ...item,
        tokens: item.tokens.map(() => 0),
      }));
      return { ...record, data: encodeStep({ ...content.frame, items }) };
    }
    case 'message':
      return { ...record, data: encodeCbor(blank(content.message)) };
    case 'map':
      // What else is a map was written without prompts and tokens, as the level demands.
      if (record.stream !== 'MAIL') return record;
      return { ...record, data: encodeCbor(blank(content.map, content.type === 'Chunk')) };
    case 'dead':
    case 'unreadable':
      // Whatever it is, it may hold a prompt.
      return { ...record, data: content.kind === 'dead' ? withoutBytes(record.data) : new Uint8Array(0) };
    default:
      return record;
  }
}

const withoutBytes = (data: Uint8Array) =>
  encodeCbor({ ...(decodeCbor(data) as Readonly<Record<string, unknown>>), bytes: new Uint8Array(0) });

function blank(value: unknown, bytes = false, name = ''): unknown {
  if (isSecret(name, value)) return blanked(value);
  if (value instanceof Uint8Array) return bytes ? new Uint8Array(value.length) : value;
  if (ArrayBuffer.isView(value)) return value;
  if (Array.isArray(value)) return value.map((each) => blank(each, bytes));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      // Optional in every schema, and of no use without what they say.
      .filter(([key]) => key !== 'grammar' && key !== 'logprobs')
      .map(([key, each]) => [key, blank(each, bytes, key)])
      .concat(name === 'work' ? [['logprobs', 0]] : []),
  );
}

function blanked(value: unknown): unknown {
  if (value instanceof Uint32Array) return new Uint32Array(value.length);
  if (typeof value === 'string') return '';
  if (typeof value === 'number') return 0;
  return Array.isArray(value) ? [] : value;
}
