/**
 * Messages larger than one chunk. The body's bytes travel ahead in Chunk messages; the envelope follows with a
 * manifest in place of its body. Only a complete, undamaged set becomes a message; the rest expires.
 */
import { createHash } from 'node:crypto';
import type { Clock } from './clock.js';
import { encodeCbor } from './envelope.js';
import { NetError } from './errors.js';
import { chunkBytes, messageBytes } from './limits.js';

export interface Manifest {
  readonly parts: number;
  readonly bytes: number;
  readonly sha256: string;
}

export interface Chunked {
  readonly chunks: readonly Uint8Array[];
  readonly manifest: Manifest;
}

/** Cuts the encoded body of message `id`. Throws NET_TOO_LARGE. */
export function cut(id: string, body: Uint8Array): Chunked {
  if (body.length > messageBytes)
    throw new NetError('NET_TOO_LARGE', { bytes: body.length, limit: messageBytes, what: id });
  const parts = Math.ceil(body.length / chunkBytes);
  return {
    chunks: Array.from({ length: parts }, (_, part) =>
      encodeCbor({
        v: 1,
        type: 'Chunk',
        of: id,
        part,
        data: body.subarray(part * chunkBytes, (part + 1) * chunkBytes),
      }),
    ),
    manifest: { parts, bytes: body.length, sha256: createHash('sha256').update(body).digest('hex') },
  };
}

interface Chunk {
  readonly of: string;
  readonly part: number;
  readonly data: Uint8Array;
}

/** Whether a decoded value is a chunk, well formed or not. */
export function isChunk(value: unknown): boolean {
  return typeof value === 'object' && value !== null && (value as { type?: unknown }).type === 'Chunk';
}

/** The manifest of a decoded envelope; `undefined` if it is whole, a string if the manifest is malformed. */
export function manifestOf(value: unknown): Manifest | string | undefined {
  if (typeof value !== 'object' || value === null || !('chunks' in value)) return undefined;
  const m = value.chunks as Partial<Manifest> | null;
  if (typeof m !== 'object' || m === null) return 'manifest is not a map';
  const { parts, bytes, sha256 } = m;
  if (!Number.isInteger(bytes) || (bytes as number) < 1 || (bytes as number) > messageBytes) return 'manifest: bytes';
  if (parts !== Math.ceil((bytes as number) / chunkBytes)) return 'manifest: parts';
  if (typeof sha256 !== 'string' || sha256.length !== 64) return 'manifest: sha256';
  return { parts, bytes: bytes as number, sha256 };
}

export interface Assembler {
  /** Keeps a chunk. A string says why it was not kept. */
  add(value: unknown): string | undefined;
  /** The body of message `id`, or why there is none; forgets the chunks either way. */
  take(id: string, manifest: Manifest): Uint8Array | string;
  /** Bytes held. */
  readonly bytes: number;
}

interface Assembly {
  readonly parts: Map<number, Uint8Array>;
  readonly since: number;
  bytes: number;
}

/** Holds at most `maxBytes` of unfinished messages, each for at most `expiryMs`; the oldest goes first. */
export function createAssembler(clock: Clock, maxBytes = 2 * messageBytes, expiryMs = 60_000): Assembler {
  const open = new Map<string, Assembly>();
  let total = 0;

  function forget(id: string, assembly: Assembly): void {
    open.delete(id);
    total -= assembly.bytes;
  }
  function expire(): void {
    const oldest = clock.now() - expiryMs;
    for (const [id, assembly] of open) {
      if (assembly.since > oldest && total <= maxBytes) return;
      forget(id, assembly);
    }
  }

  return {
    get bytes() {
      return total;
    },
    add(value) {
      const { of, part, data } = value as Partial<Chunk>;
      if (typeof of !== 'string' || of.length === 0 || of.length > 256) return 'chunk: of';
      if (!Number.isInteger(part) || (part as number) < 0 || (part as number) > messageBytes / chunkBytes)
        return 'chunk: part';
      if (!(data instanceof Uint8Array) || data.length === 0 || data.length > chunkBytes) return 'chunk: data';
      let assembly = open.get(of);
      if (!assembly) {
        assembly = { parts: new Map(), since: clock.now(), bytes: 0 };
        open.set(of, assembly);
      }
      if (!assembly.parts.has(part as number)) {
        // A copy: the decoder's view would keep the whole network buffer alive.
        assembly.parts.set(part as number, Uint8Array.prototype.slice.call(data));
        assembly.bytes += data.length;
        total += data.length;
      }
      expire();
      return open.has(of) ? undefined : 'too many unfinished messages';
    },
    take(id, manifest) {
      const assembly = open.get(id);
      if (!assembly) return `no chunks of ${id}`;
      forget(id, assembly);
      if (assembly.parts.size !== manifest.parts || assembly.bytes !== manifest.bytes) {
        return `${assembly.parts.size} of ${manifest.parts} chunks, ${assembly.bytes} of ${manifest.bytes} bytes`;
      }
      const pieces: Uint8Array[] = [];
      for (let part = 0; part < manifest.parts; part++) {
        const piece = assembly.parts.get(part);
        if (!piece) return `chunk ${part} is missing`;
        pieces.push(piece);
      }
      const body = Buffer.concat(pieces);
      return createHash('sha256').update(body).digest('hex') === manifest.sha256 ? body : 'chunks are damaged';
    },
  };
}
