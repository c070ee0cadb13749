/**
 * Step frames on the wire (design 4.3): the hot path. A frame is the CBOR array
 *
 *   [1, worker, seq, item, …]    item = [num, attempt, choice, position, finish, [token, …], cached | null, logprobs | null]
 *
 * written and read by hand: no intermediate objects, no schema walk, and any CBOR tool can read a recording of it. An
 * envelope is a CBOR map, so the first byte tells the two apart.
 */
import type { FrameItem, StepFrame } from './post.js';

const version = 1;
const itemFields = 8;
/** Most items of a frame, tokens of an item and alternatives of a token: beyond, a frame is malformed. */
const most = { items: 65_536, tokens: 65_536, alternatives: 64 } as const;
const maxCount = Number.MAX_SAFE_INTEGER;

/** CBOR major types, shifted into place. */
const uint = 0x00;
const string = 0x60;
const array = 0x80;
const nul = 0xf6;
const float64 = 0xfb;

export function isStepFrame(bytes: Uint8Array): boolean {
  return bytes.length > 0 && (bytes[0] as number) >> 5 === array >> 5;
}

let buffer = Buffer.allocUnsafeSlow(64 * 1024);
let view = new DataView(buffer.buffer);
let at = 0;

function room(bytes: number): void {
  if (at + bytes <= buffer.length) return;
  const larger = Buffer.allocUnsafeSlow(Math.max(buffer.length * 2, at + bytes));
  buffer.copy(larger, 0, 0, at);
  buffer = larger;
  view = new DataView(buffer.buffer);
}

/** Needs room for 9 bytes. */
function head(major: number, value: number): void {
  if (value < 24) buffer[at++] = major | value;
  else if (value < 0x100) {
    buffer[at] = major | 24;
    buffer[at + 1] = value;
    at += 2;
  } else if (value < 0x10000) {
    buffer[at] = major | 25;
    buffer[at + 1] = value >> 8;
    buffer[at + 2] = value;
    at += 3;
  } else if (value < 0x1_0000_0000) {
    buffer[at] = major | 26;
    view.setUint32(at + 1, value);
    at += 5;
  } else {
    buffer[at] = major | 27;
    view.setUint32(at + 1, Math.floor(value / 0x1_0000_0000));
    view.setUint32(at + 5, value >>> 0);
    at += 9;
  }
}

function real(value: number): void {
  buffer[at] = float64;
  view.setFloat64(at + 1, value);
  at += 9;
}

/** The bytes of a frame, in memory of their own. */
export function encodeStep(frame: StepFrame): Uint8Array {
  const { worker, items } = frame;
  at = 0;
  room(64 + worker.length * 3);
  head(array, 3 + items.length);
  head(uint, version);
  const length = Buffer.byteLength(worker);
  head(string, length);
  at += buffer.write(worker, at);
  head(uint, frame.seq);
  for (let i = 0; i < items.length; i++) encodeItem(items[i] as FrameItem);
  return Uint8Array.prototype.slice.call(buffer, 0, at);
}

function encodeItem(item: FrameItem): void {
  const { tokens, logprobs } = item;
  room(80 + tokens.length * 9);
  buffer[at++] = array | itemFields;
  head(uint, item.num);
  head(uint, item.attempt);
  head(uint, item.choice);
  head(uint, item.position);
  head(uint, item.finish);
  head(array, tokens.length);
  for (let i = 0; i < tokens.length; i++) head(uint, tokens[i] as number);
  if (item.cached === undefined) buffer[at++] = nul;
  else head(uint, item.cached);
  if (logprobs === undefined) buffer[at++] = nul;
  else encodeLogprobs(logprobs);
}

function encodeLogprobs(logprobs: NonNullable<FrameItem['logprobs']>): void {
  head(array, logprobs.length);
  for (const [logprob, top] of logprobs) {
    room(32 + top.length * 20);
    head(array, 2);
    real(logprob);
    head(array, top.length);
    for (const [token, value] of top) {
      head(array, 2);
      head(uint, token);
      real(value);
    }
  }
  room(32);
}

let input: Uint8Array = buffer;
let inputView: DataView = view;
let pos = 0;

/** A violation of the grammar; leaves `decodeStep` only as a return value. */
class Malformed extends Error {}
function malformed(what: string): never {
  throw new Malformed(`${what} at byte ${pos}`);
}

function length(major: number, limit: number): number {
  const first = input[pos] as number;
  if (pos >= input.length || (first & 0xe0) !== major) malformed('wrong type');
  const short = first & 0x1f;
  let value: number;
  if (short < 24) {
    value = short;
    pos += 1;
  } else if (short === 24) {
    if (pos + 2 > input.length) malformed('truncated');
    value = input[pos + 1] as number;
    pos += 2;
  } else if (short === 25) {
    if (pos + 3 > input.length) malformed('truncated');
    value = ((input[pos + 1] as number) << 8) | (input[pos + 2] as number);
    pos += 3;
  } else if (short === 26) {
    if (pos + 5 > input.length) malformed('truncated');
    value = inputView.getUint32(pos + 1);
    pos += 5;
  } else if (short === 27) {
    if (pos + 9 > input.length) malformed('truncated');
    value = inputView.getUint32(pos + 1) * 0x1_0000_0000 + inputView.getUint32(pos + 5);
    pos += 9;
  } else malformed('indefinite length');
  if (value > limit) malformed('out of range');
  return value;
}

function readReal(): number {
  if (pos + 9 > input.length || input[pos] !== float64) malformed('not a number');
  const value = inputView.getFloat64(pos + 1);
  pos += 9;
  return value;
}

/** Reads a frame; a string says what is wrong with it. The size must have been checked. Never throws. */
export function decodeStep(bytes: Uint8Array): StepFrame | string {
  input = bytes;
  inputView = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  pos = 0;
  try {
    return frame();
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

function frame(): StepFrame {
  const fields = length(array, most.items + 3);
  if (fields < 3) malformed('too short');
  if (length(uint, maxCount) !== version) malformed('unknown version');
  const size = length(string, 64);
  if (pos + size > input.length) malformed('truncated');
  const worker = Buffer.from(input.buffer, input.byteOffset + pos, size).toString('latin1');
  pos += size;
  const seq = length(uint, maxCount);
  const items: FrameItem[] = new Array(Math.min(fields - 3, input.length));
  for (let i = 3; i < fields; i++) items[i - 3] = readItem();
  if (pos !== input.length) malformed('trailing bytes');
  return { worker, seq, items };
}

function readItem(): FrameItem {
  if (length(array, itemFields) !== itemFields) malformed('item of wrong length');
  const num = length(uint, maxCount);
  const attempt = length(uint, maxCount);
  const choice = length(uint, 127);
  const position = length(uint, maxCount);
  const finish = length(uint, 4);
  const count = length(array, most.tokens);
  if (pos + count > input.length) malformed('truncated');
  const tokens: number[] = new Array(count);
  for (let i = 0; i < count; i++) tokens[i] = length(uint, 0xffff_ffff);
  if (input[pos] === nul && input[pos + 1] === nul) {
    pos += 2;
    return { num, attempt, choice, position, tokens, finish };
  }
  const cached = optional(() => length(uint, maxCount));
  const logprobs = optional(() => readLogprobs(count));
  return {
    num,
    attempt,
    choice,
    position,
    tokens,
    finish,
    ...(cached !== undefined && { cached }),
    ...(logprobs !== undefined && { logprobs }),
  };
}

function optional<T>(read: () => T): T | undefined {
  if (input[pos] !== nul) return read();
  pos += 1;
  return undefined;
}

function readLogprobs(tokens: number): [number, [number, number][]][] {
  if (length(array, most.tokens) !== tokens) malformed('logprobs do not match the tokens');
  return Array.from({ length: tokens }, () => {
    if (length(array, 2) !== 2) malformed('logprob of wrong length');
    const logprob = readReal();
    const count = length(array, most.alternatives);
    const top = Array.from({ length: count }, (): [number, number] => {
      if (length(array, 2) !== 2) malformed('alternative of wrong length');
      return [length(uint, 0xffff_ffff), readReal()];
    });
    return [logprob, top];
  });
}
