/**
 * The envelope (design 4.2): a CBOR map, plain, so that a recording can be read on its own. What comes in is checked against
 * its schema here and nowhere else; what fails is described by a Fault, never thrown into a reader.
 */
import { Decoder, Encoder } from 'cbor-x';
import { Compile } from 'typebox/compile';
import { type Address, isAddress, parts } from './address.js';
import type { NetCode } from './errors.js';
import { budgetMaxMs, payloadBytes } from './limits.js';
import { type Body, bodies, type MessageType } from './messages.js';
import type { Envelope } from './post.js';
import { speakerOf } from './speaker.js';

const options = { useRecords: false, variableMapSize: true, tagUint8Array: false } as const;
const encoder = new Encoder(options);
const decoder = new Decoder(options);

/** Plain CBOR of any value, for what is not an envelope (dead letters, chunks). */
export function encodeCbor(value: unknown): Uint8Array {
  return encoder.encode(value);
}

/** Throws on malformed input; size must have been checked. */
export function decodeCbor(bytes: Uint8Array): unknown {
  return decoder.decode(bytes);
}

/** Why a message was not accepted. `type`, `from` and `id` as far as they could be read. */
export interface Fault {
  readonly code: Extract<
    NetCode,
    'NET_MALFORMED' | 'NET_UNKNOWN_TYPE' | 'NET_VERSION' | 'NET_TOO_LARGE' | 'NET_INCOMPLETE'
  >;
  readonly detail: string;
  readonly type?: string;
  readonly from?: string;
  readonly id?: string;
}

export type Decoded =
  | { readonly ok: true; readonly envelope: Envelope }
  | { readonly ok: false; readonly fault: Fault };

const checks = new Map(
  (Object.keys(bodies) as MessageType[]).map((type) => [type as string, Compile(bodies[type])] as const),
);

export function encodeEnvelope(envelope: Envelope): Uint8Array {
  return encodeCbor(envelope);
}

/** Decodes and checks one message. `limit` is in bytes. Never throws. */
export function decodeEnvelope(bytes: Uint8Array, limit: number = payloadBytes): Decoded {
  if (bytes.length > limit) return bad('NET_TOO_LARGE', `${bytes.length} bytes, limit ${limit}`);
  let value: unknown;
  try {
    value = decodeCbor(bytes);
  } catch (error) {
    return bad('NET_MALFORMED', `not CBOR: ${text(error)}`);
  }
  return checkEnvelope(value);
}

/** The checks alone, for a value that came out of CBOR. */
export function checkEnvelope(value: unknown): Decoded {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return bad('NET_MALFORMED', 'not a map');
  const e = value as Record<string, unknown>;
  if (e.v !== 1) return bad('NET_VERSION', `version ${String(e.v).slice(0, 16)}`, e);
  const wrong = wrongField(e);
  if (wrong !== undefined) return bad('NET_MALFORMED', `field ${wrong}`, e);
  const check = checks.get(e.type as string);
  if (!check) return bad('NET_UNKNOWN_TYPE', (e.type as string).slice(0, 64), e);
  try {
    if (!check.Check(e.body)) {
      const [first] = check.Errors(e.body);
      return bad('NET_MALFORMED', `body${first ? ` ${first.instancePath} ${first.message}` : ''}`, e);
    }
    const speaker = speakerOf(e.type as MessageType, e.body);
    if (speaker !== undefined && speaker !== parts(e.from as Address).incarnation)
      return bad('NET_MALFORMED', `speaks for ${speaker}`, e);
  } catch (error) {
    return bad('NET_MALFORMED', `body: ${text(error)}`, e);
  }
  return { ok: true, envelope: value as Envelope };
}

/** Does a body fit its schema? */
export function fits<T extends MessageType>(type: T, body: unknown): body is Body<T> {
  try {
    return checks.get(type)?.Check(body) ?? false;
  } catch {
    return false;
  }
}

function wrongField(e: Record<string, unknown>): string | undefined {
  if (typeof e.type !== 'string') return 'type';
  if (typeof e.id !== 'string' || e.id.length === 0 || e.id.length > 256) return 'id';
  if (!isAddress(e.from)) return 'from';
  if (!isAddress(e.to)) return 'to';
  if (!isCount(e.seq)) return 'seq';
  if (typeof e.req !== 'string' || e.req.length > 128) return 'req';
  if (!isCount(e.attempt)) return 'attempt';
  if (typeof e.budgetMs !== 'number' || !(e.budgetMs >= 0 && e.budgetMs <= budgetMaxMs)) return 'budgetMs';
  if (typeof e.ts !== 'number' || !Number.isFinite(e.ts)) return 'ts';
  if (e.trace !== undefined && (typeof e.trace !== 'string' || e.trace.length > 256)) return 'trace';
  return undefined;
}

function isCount(value: unknown): boolean {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
}

/** `of`: the map that is wrong, as far as there is one. */
function bad(code: Fault['code'], detail: string, of: Readonly<Record<string, unknown>> = {}): Decoded {
  const { type, from, id } = of;
  const fault = {
    ...(typeof type === 'string' && { type: type.slice(0, 64) }),
    ...(typeof from === 'string' && { from: from.slice(0, 128) }),
    ...(typeof id === 'string' && { id: id.slice(0, 256) }),
    code,
    detail,
  };
  return { ok: false, fault };
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
