/**
 * What workers say of the KV blocks they hold (design 6.4), as it travels on `kv.<incarnation>.<rank>`. Two kinds of message: a batch
 * is what one engine turn changed, numbered from 1 per (incarnation, rank); a snapshot is everything held after the batch of its number,
 * in parts, and replaces all that was stored on its subject. `kv-publisher.ts` sends them, `kv-follower.ts` makes a state of them.
 */
import { decodeCbor, encodeCbor } from './envelope.js';
import { payloadBytes } from './limits.js';

/** Where a worker keeps a block, from the nearest to the farthest. */
export type KvTier = 'device' | 'host' | 'disk';
export const kvTiers = ['device', 'host', 'disk'] as const satisfies readonly KvTier[];

/**
 * One change of what a worker rank holds. Blocks are named by sequence hashes, which are chained: a name says all that a parent link
 * could, so the order of arrival of parents and children means nothing.
 */
export type KvOp =
  | { readonly op: 'stored' | 'removed'; readonly tier: KvTier; readonly hashes: BigUint64Array }
  | { readonly op: 'cleared' };

export interface KvMessage {
  readonly seq: number;
  readonly blockTokens: number;
  readonly ops: readonly KvOp[];
  /** Of a snapshot: which of how many parts. */
  readonly part?: { readonly index: number; readonly of: number };
}

/** What is wrong with a message; its sender's word counts for nothing until a whole snapshot is right. */
export interface KvFault {
  readonly code: 'malformed' | 'version' | 'block-size' | 'medium' | 'oversized';
  readonly detail: string;
}

export const kvLimits = {
  /** Blocks of one batch, and of one part of a snapshot: half a mebibyte. */
  blocks: 65_536,
  ops: 1_024,
  parts: 256,
} as const;

const version = 1;
const kinds = ['stored', 'removed', 'cleared'] as const;
const hashBytes = 8;

export function encodeKv({ seq, blockTokens, ops, part }: KvMessage): Uint8Array {
  const list = ops.map((op) =>
    op.op === 'cleared'
      ? [kinds.indexOf('cleared')]
      : // Bytes, little-endian as every platform dynact runs on: a number would lose what is above 53 bits.
        [kinds.indexOf(op.op), op.tier, new Uint8Array(op.hashes.buffer, op.hashes.byteOffset, op.hashes.byteLength)],
  );
  return encodeCbor({ v: version, seq, blockTokens, ops: list, ...(part && { part: [part.index, part.of] }) });
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/** Reads and checks a message of a worker whose blocks have `blockTokens` tokens. Never throws. */
export function decodeKv(bytes: Uint8Array, blockTokens: number): KvMessage | KvFault {
  if (bytes.length > payloadBytes) return fault('oversized', `${bytes.length} bytes`);
  let value: unknown;
  try {
    value = decodeCbor(bytes);
  } catch {
    return fault('malformed', 'not CBOR');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return fault('malformed', 'not a map');
  const { v, seq, blockTokens: size, ops, part } = value as Record<string, unknown>;
  if (v !== version) return fault('version', `version ${String(v).slice(0, 16)}`);
  if (!isCount(seq)) return fault('malformed', 'seq');
  if (size !== blockTokens) return fault('block-size', `blocks of ${String(size).slice(0, 16)}, ${blockTokens} wanted`);
  if (!Array.isArray(ops)) return fault('malformed', 'ops');
  if (ops.length > kvLimits.ops) return fault('oversized', `${ops.length} operations`);
  const read: KvOp[] = [];
  let blocks = 0;
  for (const each of ops) {
    const op = readOp(each);
    if ('code' in op) return op;
    if (op.op !== 'cleared') blocks += op.hashes.length;
    read.push(op);
  }
  if (blocks > kvLimits.blocks) return fault('oversized', `${blocks} blocks`);
  if (part === undefined) return seq === 0 ? fault('malformed', 'seq') : { seq, blockTokens, ops: read };
  if (!Array.isArray(part) || part.length !== 2 || !part.every(isCount)) return fault('malformed', 'part');
  const [index, of] = part as [number, number];
  if (of > kvLimits.parts) return fault('oversized', `${of} parts`);
  if (index >= of || read.some(({ op }) => op !== 'stored')) return fault('malformed', 'part');
  return { seq, blockTokens, ops: read, part: { index, of } };
}

function readOp(value: unknown): KvOp | KvFault {
  if (!Array.isArray(value)) return fault('malformed', 'operation');
  const op = kinds[value[0] as number];
  if (op === undefined) return fault('malformed', `operation ${String(value[0]).slice(0, 16)}`);
  if (op === 'cleared') return { op };
  const [, tier, bytes] = value as unknown[];
  if (!kvTiers.some((known) => known === tier)) return fault('medium', `medium ${String(tier).slice(0, 32)}`);
  if (!(bytes instanceof Uint8Array) || bytes.length % hashBytes !== 0) return fault('malformed', 'hashes');
  // A copy of its own: 64-bit views need their bytes aligned, and the payload may be the reader's buffer.
  return { op, tier: tier as KvTier, hashes: new BigUint64Array(Uint8Array.from(bytes).buffer) };
}

function fault(code: KvFault['code'], detail: string): KvFault {
  return { code, detail };
}

/** What a follower asks a worker for: snapshots of the ranks it has lost. The answer says where every rank is. */
export interface KvQuestion {
  readonly want: readonly number[];
}
export interface KvAnswer {
  readonly seqs: readonly (readonly [rank: number, seq: number])[];
}

const questionBytes = 16 * 1024;

export const encodeKvQuestion = (question: KvQuestion): Uint8Array => encodeCbor(question);
export const encodeKvAnswer = (answer: KvAnswer): Uint8Array => encodeCbor(answer);

/** Undefined: not a question. */
export function decodeKvQuestion(bytes: Uint8Array): KvQuestion | undefined {
  const want = read(bytes)?.want;
  return Array.isArray(want) && want.every(isCount) ? { want } : undefined;
}

/** Undefined: not an answer. */
export function decodeKvAnswer(bytes: Uint8Array): KvAnswer | undefined {
  const seqs = read(bytes)?.seqs;
  const isPair = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && pair.every(isCount);
  return Array.isArray(seqs) && seqs.every(isPair) ? { seqs: seqs as [number, number][] } : undefined;
}

function read(bytes: Uint8Array): Record<string, unknown> | undefined {
  if (bytes.length > questionBytes) return undefined;
  try {
    const value = decodeCbor(bytes);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
