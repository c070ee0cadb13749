/**
 * One stored message as people read it: whose it is, what it is, which request it belongs to. Everything that a stream of a node can hold
 * is understood here and nowhere else; what is not is described, never skipped. A new kind of record is one more row of `kinds`.
 */
import { decodeRoutes, decodeTurn, type Turn } from '../../actors/index.js';
import {
  type DeadMail,
  decodeCbor,
  decodeEnvelope,
  decodeJournal,
  decodeStep,
  type Envelope,
  isStepFrame,
  type JournalRecord,
  type StepFrame,
  type StreamName,
} from '../../transport/index.js';

export interface TapeRecord {
  readonly stream: StreamName;
  /** Of the stream: with its name, what identifies a record. */
  readonly seq: number;
  /** The broker's wall clock when it was stored, milliseconds since 1970. */
  readonly at: number;
  readonly subject: string;
  readonly data: Uint8Array;
}

/** What a stream holds now. */
export interface StreamFacts {
  readonly name: StreamName;
  readonly storage: 'file' | 'memory';
  readonly records: number;
  readonly bytes: number;
  /** When its oldest record was stored, milliseconds since 1970; 0 = it is empty. */
  readonly since: number;
  readonly maxAgeMs: number;
  readonly maxBytes: number;
}

/** What a record says, by kind. */
export type Content =
  | { readonly kind: 'message'; readonly message: Envelope }
  | { readonly kind: 'step'; readonly frame: StepFrame }
  | { readonly kind: 'routes'; readonly routes: NonNullable<ReturnType<typeof decodeRoutes>> }
  /** What the actors of a process were told in one turn of its event loop, and did. */
  | { readonly kind: 'turn'; readonly turn: Turn }
  | { readonly kind: 'journal'; readonly journal: JournalRecord }
  | { readonly kind: 'dead'; readonly letter: DeadMail }
  /** Maps that are read as they are: chunks of long messages, KV events, whatever else is on the tape. */
  | { readonly kind: 'map'; readonly type: string; readonly map: Readonly<Record<string, unknown>> }
  | { readonly kind: 'unreadable'; readonly why: string };

export interface Read {
  readonly record: TapeRecord;
  readonly content: Content;
  /** `Reserve`, `step`, `journal` … what `--type` filters by. */
  readonly type: string;
  readonly from: string;
  readonly to: string;
  /** Requests it names; a step frame names them by gateway and number only. */
  readonly requests: readonly string[];
  readonly attempt: number | undefined;
}

/** The first tokens of a subject, after `dyn.<namespace>.`. */
const tailOf = (subject: string): readonly string[] => subject.split('.').slice(2);

/** Never throws. */
export function readRecord(record: TapeRecord): Read {
  const [kind = '', ...rest] = tailOf(record.subject);
  const content = (kinds[kind] ?? unknown)(record.data, kind, rest[0] ?? '');
  return { record, content, ...headOf(content, kind, rest) };
}

type Reader = (data: Uint8Array, kind: string, owner: string) => Content;
const unreadable = (why: string): Content => ({ kind: 'unreadable', why });
const unknown: Reader = (_, kind) => unreadable(`unknown kind of subject: ${kind}`);

/** A chunk, or an envelope whose body went ahead in chunks, is a map; every other envelope is checked as its receiver does. */
const envelope: Reader = (data) => {
  const decoded = decodeEnvelope(data);
  if (decoded.ok) return { kind: 'message', message: decoded.envelope };
  const { code, detail, type = '' } = decoded.fault;
  const map = mapOf(data);
  if (map !== undefined && (map.type === 'Chunk' || 'chunks' in map))
    return { kind: 'map', type: map.type === 'Chunk' ? 'Chunk' : type || String(map.type), map };
  if (code === 'NET_VERSION')
    return unreadable(
      `an envelope of ${detail}, and this dynact reads version 1: read it with the dynact that wrote it`,
    );
  if (code === 'NET_UNKNOWN_TYPE') return unreadable(`a message of unknown type ${detail}`);
  return unreadable(`${type === '' ? 'a message' : type}: ${detail}`);
};

const kinds: Readonly<Record<string, Reader>> = {
  mail: envelope,
  job: envelope,
  out(data, kind, owner) {
    if (!isStepFrame(data)) return envelope(data, kind, owner);
    const frame = decodeStep(data);
    return typeof frame === 'string' ? unreadable(`step frame: ${frame}`) : { kind: 'step', frame };
  },
  ack: envelope,
  load: envelope,
  down: envelope,
  tape(data) {
    const routes = decodeRoutes(data);
    if (routes !== undefined) return { kind: 'routes', routes };
    const map = mapOf(data);
    if (map === undefined) return unreadable('a tape record that is not a CBOR map');
    if (map.type === 'turn') {
      const turn = decodeTurn(data);
      return typeof turn === 'string' ? unreadable(turn) : { kind: 'turn', turn };
    }
    if (typeof map.v === 'number' && map.v > 1) return unreadable(`a tape record of version ${map.v}`);
    return { kind: 'map', type: typeof map.type === 'string' ? map.type : 'tape', map };
  },
  kv(data, _, owner) {
    // The node writes zeros there to see whether the broker stores anything.
    if (owner.startsWith('node-')) return { kind: 'map', type: 'probe', map: { bytes: data.length } };
    const map = mapOf(data);
    return map === undefined ? unreadable('KV events that are not a CBOR map') : { kind: 'map', type: 'kv', map };
  },
  journal(data) {
    const journal = decodeJournal(data);
    return journal === undefined ? unreadable('a journal record of another version') : { kind: 'journal', journal };
  },
  dead(data) {
    const map = mapOf(data);
    if (map === undefined || map.v !== 1 || typeof map.code !== 'string' || !(map.bytes instanceof Uint8Array))
      return unreadable('a dead letter of another version');
    return { kind: 'dead', letter: map as unknown as DeadMail };
  },
};

function mapOf(data: Uint8Array): Readonly<Record<string, unknown>> | undefined {
  try {
    const value = decodeCbor(data);
    const isMap = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isMap ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

const text = (value: unknown): string => (typeof value === 'string' ? value : '');

function headOf(content: Content, kind: string, [component = '', incarnation = '', actor]: readonly string[]) {
  const owner = [component, incarnation, actor].filter(Boolean).join('.');
  const base = { from: owner, to: '', requests: [] as readonly string[], attempt: undefined };
  switch (content.kind) {
    case 'message': {
      const { type, from, to, req, attempt } = content.message;
      return { type, from, to, requests: req === '' ? [] : [req], attempt: req === '' ? undefined : attempt };
    }
    case 'step':
      return { ...base, type: 'step', from: content.frame.worker, to: `gateway.${component}` };
    case 'routes': {
      const { records, began } = content.routes;
      return { ...base, type: 'routes', requests: [...new Set([...records, ...began].map(({ id }) => id))] };
    }
    case 'turn':
      return { ...base, type: 'turn', from: `${component}.${incarnation}`, requests: content.turn.requests };
    case 'journal': {
      const { accepted, ended, open, lost, by } = content.journal;
      const requests = [...new Set([...accepted, ...ended].map(({ req }) => req).concat(open, lost))];
      return { ...base, type: 'journal', from: `gateway.${by}`, to: `gateway.${component}`, requests };
    }
    case 'dead': {
      const { letter } = content;
      const inner = decodeEnvelope(letter.bytes);
      // What the frontend buries says whose it was in its detail.
      const named = inner.ok ? inner.envelope.req : (/\b[0-9a-hjkmnp-tv-z]{26}\b/.exec(letter.detail)?.[0] ?? '');
      return { ...base, type: 'dead', attempt: letter.attempt, requests: named === '' ? [] : [named] };
    }
    case 'map': {
      const { map, type } = content;
      const req = text(map.req);
      return {
        ...base,
        type,
        from: text(map.from) || (kind === 'kv' ? component : owner),
        to: text(map.to) || (kind === 'mail' ? owner : ''),
        requests: req === '' ? [] : [req],
        attempt: typeof map.attempt === 'number' ? map.attempt : undefined,
      };
    }
    case 'unreadable':
      return { ...base, type: 'unreadable' };
  }
}
