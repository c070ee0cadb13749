/**
 * Values as they stand on the tape: plain CBOR (RFC 8949). Two things that are no data are written as identifiers (tag 39): a reference to an
 * actor as [path, incarnation], a port as [name]. Read back they are `Named`: enough to tell a replayed actor whom it speaks of.
 */
import { addExtension, Decoder, Encoder } from 'cbor-x';
import { Target } from '../kernel/target.js';

/** A reference or a port, read from the tape. */
export class Named {
  constructor(
    readonly path: string,
    /** 0: of a port. */
    readonly incarnation: number,
  ) {}
}

const identifierTag = 39;

/** One codec for all that has a path; what is read back is always `Named`. */
for (const Class of [Target, Named]) {
  addExtension({
    Class,
    tag: identifierTag,
    encode: ({ path, incarnation }: Named, encode: (value: unknown) => Uint8Array) => encode([path, incarnation]),
    decode(data: unknown) {
      const [path, incarnation] = Array.isArray(data) ? (data as unknown[]) : [];
      return new Named(typeof path === 'string' ? path : '', typeof incarnation === 'number' ? incarnation : 0);
    },
  } as unknown as Parameters<typeof addExtension>[0]);
}

/** Tag 27 as cbor-x has it, and the code by which callers tell errors apart. */
addExtension({
  Class: Error,
  tag: 27,
  encode: (error: Error & { readonly code?: unknown }, encode: (value: unknown) => Uint8Array) =>
    encode([error.name, error.message, error.code]),
  decode(data: unknown) {
    const [name, message, code] = Array.isArray(data) ? (data as unknown[]) : [];
    return Object.assign(new Error(String(message)), { name: String(name), ...(code !== undefined && { code }) });
  },
} as unknown as Parameters<typeof addExtension>[0]);

const options = { useRecords: false, variableMapSize: true, tagUint8Array: false } as const;
const encoder = new Encoder(options);
const decoder = new Decoder(options);

/** Throws on a function: what an actor is told is data, references and ports. */
export const encodeValue = (value: unknown): Uint8Array => encoder.encode(value);

/** Throws on what is not CBOR. */
export const decodeValue = (bytes: Uint8Array): unknown => decoder.decode(bytes);
