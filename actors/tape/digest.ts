/**
 * 32 bits of a value, the same for what was said and for what is said again: references count by their names, a member that is undefined like
 * one that is absent, functions not at all. No text is made of it: a digest is taken of everything that leaves an actor.
 */
import { Target } from '../kernel/target.js';
import { Named } from './codec.js';

const prime = 0x01000193;
const seed = 0x811c9dc5;
const marks = { undefined: 1, null: 2, true: 3, false: 4, list: 5, map: 6, function: 7, text: 8, number: 9 } as const;

const float = new Float64Array(1);
const halves = new Uint32Array(float.buffer);

const mix = (hash: number, value: number): number => {
  const mixed = Math.imul(hash ^ value, prime);
  return mixed ^ (mixed >>> 15);
};

function text(before: number, value: string): number {
  let hash = mix(before, marks.text + value.length);
  for (let at = 0; at < value.length; at++) hash = Math.imul(hash ^ value.charCodeAt(at), prime);
  return hash;
}

function number(hash: number, value: number): number {
  if (value === (value | 0)) return mix(hash, value);
  float[0] = value;
  return mix(mix(mix(hash, marks.number), halves[0] as number), halves[1] as number);
}

function bytes(before: number, view: ArrayBufferView): number {
  let hash = mix(before, view.byteLength);
  // What was read from the tape may lie anywhere in memory: words are taken of what is made of words.
  const units =
    view instanceof Uint8Array
      ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
      : new Uint32Array(view.buffer, view.byteOffset, view.byteLength >>> 2);
  for (let at = 0; at < units.length; at++) hash = mix(hash, units[at] as number);
  return hash;
}

function value(hash: number, of: unknown): number {
  switch (typeof of) {
    case 'string':
      return text(hash, of);
    case 'number':
      return number(hash, of);
    case 'boolean':
      return mix(hash, of ? marks.true : marks.false);
    case 'undefined':
      return mix(hash, marks.undefined);
    case 'bigint':
      return mix(mix(hash, Number(BigInt.asIntN(32, of))), Number(BigInt.asIntN(32, of >> 32n)));
    case 'object':
      return of === null ? mix(hash, marks.null) : object(hash, of);
    default:
      return mix(hash, marks.function);
  }
}

function object(before: number, of: object): number {
  let hash = before;
  if (Array.isArray(of)) {
    hash = mix(hash, marks.list + of.length);
    for (const each of of) hash = value(hash, each);
    return hash;
  }
  if (ArrayBuffer.isView(of)) return bytes(hash, of);
  if (of instanceof Target || of instanceof Named) return number(text(hash, of.path), of.incarnation);
  if (of instanceof Error) return text(hash, of.message);
  if (of instanceof Set || of instanceof Map) {
    hash = mix(hash, of.size);
    for (const each of of) hash = value(hash, each);
    return hash;
  }
  hash = mix(hash, marks.map);
  for (const key in of) {
    const member = (of as Readonly<Record<string, unknown>>)[key];
    if (member !== undefined) hash = value(text(hash, key), member);
  }
  return hash;
}

export const digestOf = (...values: readonly unknown[]): number => {
  let hash = seed;
  for (const each of values) hash = value(hash, each);
  return hash >>> 0;
};
