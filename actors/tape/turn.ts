/**
 * What is written of one turn of a process's event loop (design 7): a CBOR map of its own on `tape.<component>.<incarnation>.turns`,
 *
 *   { v: 1, type: 'turn', process, n, at, names, requests, entries }
 *
 * `process` is the incarnation, `n` counts its records from 1 (a number that is missing is a hole), `at` is its wall clock in milliseconds since
 * 1970, `names` holds each string that entries refer to by index, `requests` the requests they are about. An entry is one delivery:
 *
 *   [actor, ordinal, origin, type, input, reads, answers, outputs]
 *
 * - `actor`: index of its address; `ordinal` counts the entries of one life from 0, which is its start.
 * - `origin`: how it came: 0 told; above 0 what was owed to it under that number (timer, answer, result, end of somebody it watches);
 *   -1 once more, after a failure; -2 its start; -3 its last words; -4 what it made of a failure to handle the entry before.
 * - `type`: index of the message's type.
 * - `input`: CBOR of what came: the message, if it was told; of what was owed [which of its outcomes, value]; of a start a `Life`,
 *   of an end its reason, of a failure [how often, error].
 *   Identifiers (tag 39) stand for actors and ports.
 * - `reads` and `answers`: what it asked of the world, a letter for each, and what it was told: n `now`, w `wallTime`, r `random`, i `id`,
 *   p a port.
 * - `outputs`: kind, receiver, type, digest of each in turn, flat. Kinds are indices of `outputKinds`; receiver and type are names.
 */
import { decodeValue, encodeValue } from './codec.js';

const turnVersion = 1;

export const outputKinds = [
  'tell',
  'ask',
  'after',
  'cancelTimer',
  'watch',
  'pipe',
  'stop',
  'command',
  'frame',
  'step',
  'query',
  'port',
  'verdict',
] as const;
export type OutputKind = (typeof outputKinds)[number];

export const origins = { told: 0, again: -1, start: -2, stopped: -3, contain: -4 } as const;

/** The start of an actor, as it is written in its first entry. */
export interface Life {
  /** Name of its behaviour. */
  readonly behaviour: string;
  /** Of its reference. */
  readonly incarnation: number;
  /** Version of the code that ran. */
  readonly code: string;
  /** What it was made with. */
  readonly config: unknown;
  /** Whether entries hold what the actor needs to be run again; if not, prompts and tokens are left out of them, and answers too. */
  readonly whole: boolean;
}

export interface Output {
  readonly kind: OutputKind;
  /** Path of an actor, address, name of a port; '' for none. */
  readonly to: string;
  readonly type: string;
  /** 32 bits of what was said. */
  readonly digest: number;
}

export interface Entry {
  readonly actor: string;
  readonly ordinal: number;
  readonly origin: number;
  readonly type: string;
  readonly input: Uint8Array;
  readonly reads: string;
  readonly answers: readonly unknown[];
  readonly outputs: readonly Output[];
}

export interface Turn {
  readonly process: string;
  readonly n: number;
  /** Wall clock, milliseconds since 1970. */
  readonly at: number;
  readonly requests: readonly string[];
  readonly entries: readonly Entry[];
}

/** As it is gathered: receivers and types are strings until they are written. */
export interface RawEntry {
  readonly actor: string;
  readonly ordinal: number;
  readonly origin: number;
  readonly type: string;
  readonly input: Uint8Array;
  /** '' if it is about none, or about more than one. */
  readonly request: string;
  reads: string;
  readonly answers: unknown[];
  /** Kind (index), receiver, type, digest. */
  readonly outputs: (string | number)[];
}

export function encodeTurn(process: string, n: number, at: number, raw: readonly RawEntry[]): Uint8Array {
  const places = new Map<string, number>();
  const names: string[] = [];
  const place = (name: string | number): number => {
    const text = String(name);
    let index = places.get(text);
    if (index === undefined) {
      index = names.push(text) - 1;
      places.set(text, index);
    }
    return index;
  };
  const requests = new Set<string>();
  const entries = raw.map(({ actor, ordinal, origin, type, input, request, reads, answers, outputs }) => {
    if (request !== '') requests.add(request);
    const flat = outputs.map((each, at) => (at % 4 === 1 || at % 4 === 2 ? place(each) : each));
    return [place(actor), ordinal, origin, place(type), input, reads, answers, flat];
  });
  return encodeValue({ v: turnVersion, type: 'turn', process, n, at, names, requests: [...requests], entries });
}

/** The turn, or what is wrong with it. */
export function decodeTurn(bytes: Uint8Array): Turn | string {
  let map: Readonly<Record<string, unknown>>;
  try {
    map = (decodeValue(bytes) ?? {}) as typeof map;
  } catch (error) {
    return `not CBOR: ${error instanceof Error ? error.message : String(error)}`;
  }
  const { v, type, process, n, at, names, requests, entries } = map;
  if (type !== 'turn') return `not a turn but ${typeof type === 'string' ? type.slice(0, 64) : 'something else'}`;
  if (v !== turnVersion)
    return `a turn of version ${String(v).slice(0, 16)}, and this dynact reads version ${turnVersion}`;
  const whole =
    typeof process === 'string' && isCount(n) && typeof at === 'number' && isTexts(names) && isTexts(requests);
  if (!whole || !Array.isArray(entries)) return 'not as turns are';
  const read: Entry[] = [];
  for (const [index, raw] of entries.entries()) {
    const entry = entryOf(raw, names);
    if (typeof entry === 'string') return `entry ${index + 1}: ${entry}`;
    read.push(entry);
  }
  return { process, n, at, requests, entries: read };
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isTexts = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((each) => typeof each === 'string');

function entryOf(raw: unknown, names: readonly string[]): Entry | string {
  if (!Array.isArray(raw)) return 'not an entry';
  const [actor, ordinal, origin, type, input, reads, answers, flat] = raw as unknown[];
  const name = (index: unknown) => names[index as number];
  const [who, what] = [name(actor), name(type)];
  const isEntry =
    who !== undefined &&
    what !== undefined &&
    isCount(ordinal) &&
    Number.isSafeInteger(origin) &&
    input instanceof Uint8Array &&
    typeof reads === 'string' &&
    Array.isArray(answers) &&
    Array.isArray(flat) &&
    flat.length % 4 === 0;
  if (!isEntry) return 'not as entries are';
  const outputs: Output[] = [];
  for (let at = 0; at < flat.length; at += 4) {
    const [kind, to, said] = [outputKinds[flat[at] as number], name(flat[at + 1]), name(flat[at + 2])];
    if (kind === undefined) return `an output of unknown kind ${String(flat[at]).slice(0, 16)}`;
    if (to === undefined || said === undefined) return 'an output without its names';
    outputs.push({ kind, to, type: said, digest: flat[at + 3] as number });
  }
  return { actor: who, ordinal, origin: origin as number, type: what, input, reads, answers, outputs };
}
