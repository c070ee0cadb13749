/**
 * Writes a llama model of random weights, small enough to load in milliseconds and real enough for everything else: GGUF, ChatML,
 * a byte-level BPE vocabulary with control tokens, attention heads of 64 (what flash attention on f16 KV needs). Specs run the
 * real library on it. Its text is noise, but it is the same noise for the same seed on every machine.
 */
import { renameSync, writeFileSync } from 'node:fs';

export interface TinyModelOptions {
  /** Draws the weights. @default 1 */
  readonly seed?: number;
  /** @default 2 */
  readonly layers?: number;
  /** Query heads of 64 dimensions; the width of the model is 64 times this. @default 2 */
  readonly heads?: number;
  /** Key and value heads, a divisor of `heads`. @default 1 */
  readonly kvHeads?: number;
  /** @default 2048 */
  readonly contextTokens?: number;
}

const headSize = 64;
const chatml =
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
/** Ids 0, 1, 2; the bytes follow. */
const controls = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'] as const;

/** GPT-2's printable stand-ins for the 256 bytes. */
function byteCharacters(): string[] {
  const printable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let spare = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : spare++));
}

// GGUF value types, as far as they are needed.
const typeU32 = 4;
const typeI32 = 5;
const typeF32 = 6;
const typeString = 8;
const typeArray = 9;
const alignment = 32;
const tensorF32 = 0;
const tensorF16 = 1;

class Bytes {
  readonly #parts: Buffer[] = [];
  length = 0;

  raw(part: Buffer): this {
    this.#parts.push(part);
    this.length += part.length;
    return this;
  }

  u32(value: number): this {
    const part = Buffer.alloc(4);
    part.writeUInt32LE(value);
    return this.raw(part);
  }

  u64(value: number): this {
    const part = Buffer.alloc(8);
    part.writeBigUInt64LE(BigInt(value));
    return this.raw(part);
  }

  f32(value: number): this {
    const part = Buffer.alloc(4);
    part.writeFloatLE(value);
    return this.raw(part);
  }

  text(value: string): this {
    const part = Buffer.from(value);
    return this.u64(part.length).raw(part);
  }

  pad(): this {
    return this.raw(Buffer.alloc((alignment - (this.length % alignment)) % alignment));
  }

  buffer(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

interface Tensor {
  readonly name: string;
  /** Innermost first, as ggml counts. */
  readonly shape: readonly number[];
  readonly type: number;
  readonly bytes: Buffer;
}

/** Nearest half of a number that has a normal one. */
function toHalf(value: number): number {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, value);
  const bits = view.getUint32(0);
  const exponent = ((bits >>> 23) & 0xff) - 112;
  if (exponent <= 0) return (bits >>> 16) & 0x8000;
  return ((bits >>> 16) & 0x8000) | ((exponent << 10) + (((bits & 0x7fffff) + 0x1000) >>> 13));
}

/** mulberry32: uniform in [-1, 1). */
function uniform(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

function tensors(layers: number, width: number, kvWidth: number, feed: number, vocab: number, seed: number): Tensor[] {
  const draw = uniform(seed);
  const matrix = (name: string, columns: number, rows: number, gain = 1): Tensor => {
    // Uniform of this half-width keeps the variance of what passes through; more gain makes attention less even.
    const scale = gain * Math.sqrt(3 / columns);
    const bytes = Buffer.alloc(columns * rows * 2);
    for (let at = 0; at < bytes.length; at += 2) bytes.writeUInt16LE(toHalf(draw() * scale), at);
    return { name, shape: [columns, rows], type: tensorF16, bytes };
  };
  const ones = (name: string): Tensor => {
    const bytes = Buffer.alloc(width * 4);
    for (let at = 0; at < bytes.length; at += 4) bytes.writeFloatLE(1, at);
    return { name, shape: [width], type: tensorF32, bytes };
  };
  const out: Tensor[] = [matrix('token_embd.weight', width, vocab, Math.sqrt(width)), ones('output_norm.weight')];
  out.push(matrix('output.weight', width, vocab, 3));
  for (let layer = 0; layer < layers; layer += 1) {
    const name = (part: string): string => `blk.${layer}.${part}.weight`;
    out.push(
      ones(name('attn_norm')),
      matrix(name('attn_q'), width, width, 2),
      matrix(name('attn_k'), width, kvWidth, 2),
      matrix(name('attn_v'), width, kvWidth),
      matrix(name('attn_output'), width, width),
      ones(name('ffn_norm')),
      matrix(name('ffn_gate'), width, feed),
      matrix(name('ffn_up'), width, feed),
      matrix(name('ffn_down'), feed, width),
    );
  }
  return out;
}

type Value =
  | number
  | string
  | { readonly f32: number }
  | { readonly type: number; readonly items: readonly (number | string)[] };

function writeValue(out: Bytes, value: Value): void {
  if (typeof value === 'number') out.u32(typeU32).u32(value);
  else if (typeof value === 'string') out.u32(typeString).text(value);
  else if ('f32' in value) out.u32(typeF32).f32(value.f32);
  else {
    out.u32(typeArray).u32(value.type).u64(value.items.length);
    for (const item of value.items) {
      if (typeof item === 'string') out.text(item);
      else out.u32(item);
    }
  }
}

/** The bytes of a tiny GGUF model; the same options give the same bytes. Throws RangeError for sizes that cannot be. */
export function tinyModel(options: TinyModelOptions = {}): Buffer {
  const { seed = 1, layers = 2, heads = 2, kvHeads = 1, contextTokens = 2048 } = options;
  for (const [name, value] of Object.entries({ layers, heads, kvHeads, contextTokens })) {
    if (!Number.isInteger(value) || value < 1) throw new RangeError(`${name} must be an integer of at least 1`);
  }
  if (heads % kvHeads !== 0) throw new RangeError(`kvHeads ${kvHeads} does not divide heads ${heads}`);
  const width = heads * headSize;
  const feed = width * 2;
  // One merge, for the library expects a list; its token is the last one.
  const pieces = [...controls, ...byteCharacters(), 'th'];
  const metadata: [string, Value][] = [
    ['general.architecture', 'llama'],
    ['general.name', 'dynact tiny'],
    ['general.alignment', alignment],
    ['general.file_type', 1],
    ['llama.context_length', contextTokens],
    ['llama.embedding_length', width],
    ['llama.block_count', layers],
    ['llama.feed_forward_length', feed],
    ['llama.attention.head_count', heads],
    ['llama.attention.head_count_kv', kvHeads],
    ['llama.attention.layer_norm_rms_epsilon', { f32: 1e-5 }],
    ['llama.rope.dimension_count', headSize],
    ['llama.rope.freq_base', { f32: 10_000 }],
    ['llama.vocab_size', pieces.length],
    ['tokenizer.ggml.model', 'gpt2'],
    ['tokenizer.ggml.pre', 'smollm'],
    ['tokenizer.ggml.tokens', { type: typeString, items: pieces }],
    // 3 = control, 1 = normal.
    ['tokenizer.ggml.token_type', { type: typeI32, items: pieces.map((_, id) => (id < controls.length ? 3 : 1)) }],
    ['tokenizer.ggml.merges', { type: typeString, items: ['t h'] }],
    ['tokenizer.ggml.bos_token_id', 1],
    ['tokenizer.ggml.eos_token_id', 2],
    ['tokenizer.ggml.padding_token_id', 2],
    ['tokenizer.chat_template', chatml],
  ];
  const weights = tensors(layers, width, kvHeads * headSize, feed, pieces.length, seed);
  const head = new Bytes().raw(Buffer.from('GGUF')).u32(3).u64(weights.length).u64(metadata.length);
  for (const [key, value] of metadata) writeValue(head.text(key), value);
  let offset = 0;
  for (const { name, shape, type, bytes } of weights) {
    head.text(name).u32(shape.length);
    for (const size of shape) head.u64(size);
    head.u32(type).u64(offset);
    offset += Math.ceil(bytes.length / alignment) * alignment;
  }
  head.pad();
  for (const { bytes } of weights) head.raw(bytes).pad();
  return head.buffer();
}

/** Writes `tinyModel` to `path`, whole or not at all. */
export function writeTinyModel(path: string, options: TinyModelOptions = {}): void {
  writeFileSync(`${path}.part`, tinyModel(options));
  renameSync(`${path}.part`, path);
}
