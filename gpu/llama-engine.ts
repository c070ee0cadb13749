import type { BlockRef, KvOp, PoolRef } from '../transport/index.js';
import { hashFromHex, hashToHex } from './block-hash.js';
import type { Engine, EngineError, EngineErrorCode, EngineSink, EngineStep, EngineToken, ModelCard } from './engine.js';
import { type Device, loadNative, type NativeAnswer, type NativeEngine, type NativeStep } from './native.js';

const blockTokens = 64;
/** Numbers per token in a packed step, and the mark for "no logprobs". */
const tokenFields = 6;
const none = 0xffff_ffff;

export interface LlamaEngineOptions {
  /** Model id as clients name it. */
  readonly model: string;
  /** GGUF file with the weights the engine runs. */
  readonly path: string;
  /** SHA-256 of the canonical source file and the run-time format: they name the KV that this engine makes. */
  readonly sourceHash: string;
  readonly format: string;
  /** Sequences at a time, 1 to 256. @default 8 */
  readonly slots?: number;
  /** Most tokens per sequence, rounded up to a multiple of 256. KV memory is slots × this. @default the model's context, at most 2048 */
  readonly sequenceTokens?: number;
  /** Rows of one prefill call, a multiple of 64 up to 512: decoding pauses for that long. @default 256 */
  readonly prefillChunk?: number;
  /** Compute threads; tokens do not depend on their number. Two spinning threads collapse on a shared core (measured). @default 1 */
  readonly threads?: number;
  /** Requests that may wait for a slot; more are refused with GPU_FULL. @default 4 × slots */
  readonly maxWaiting?: number;
  /** Host memory for cached prefix blocks. @default 256 MiB */
  readonly cacheBytes?: number;
  /** Blocks the export pool holds; 0 for an engine that never exports. @default 0 */
  readonly exportBlocks?: number;
  /** Incarnation that owns the export pool. @default '' */
  readonly owner?: string;
  /** Counts the pools of this incarnation. @default 0 */
  readonly epoch?: number;
  /** @default 'cpu' */
  readonly device?: Device;
}

/** An engine of this kind also says what its thread spends its time on. */
export interface LlamaEngine extends Engine {
  /** CPU time of the engine thread, ms. With one thread, `totalMs − decodeMs` is what dynact adds to the library. */
  cpu(): { readonly totalMs: number; readonly decodeMs: number };
}

/**
 * Loads a model and creates its engine; the event loop keeps running meanwhile. Rejects with Error when the addon, the library or the file is
 * missing or unusable, or a limit is out of range.
 */
export async function createLlamaEngine(options: LlamaEngineOptions): Promise<LlamaEngine> {
  const { native } = loadNative(options.device ?? 'cpu');
  const slots = options.slots ?? 8;
  const engine = await native.createEngine({
    path: options.path,
    gpu: options.device === 'cuda',
    slots,
    sequenceTokens: options.sequenceTokens ?? 2048,
    prefillChunk: options.prefillChunk ?? 256,
    threads: options.threads ?? 1,
    maxWaiting: options.maxWaiting ?? 4 * slots,
    cacheBytes: options.cacheBytes ?? 256 * 2 ** 20,
    exportBlocks: options.exportBlocks ?? 0,
    owner: options.owner ?? '',
    epoch: options.epoch ?? 0,
    fingerprint: `${options.sourceHash.slice(0, 16)}/${options.format}`,
  });
  return wrap(engine, options);
}

function wrap(native: NativeEngine, options: LlamaEngineOptions): LlamaEngine {
  const facts = native.facts;
  const card: ModelCard = {
    id: options.model,
    engine: 'llama',
    path: options.path,
    sourceHash: options.sourceHash,
    format: options.format,
    fingerprint: facts.fingerprint,
    kvType: facts.kvType,
    kvLayout: facts.layout,
    contextTokens: Math.min(facts.contextTokens, facts.sequenceTokens),
    vocabTokens: facts.vocabTokens,
    blockTokens,
  };
  const pool: PoolRef | undefined =
    facts.poolFd === undefined || facts.poolBytes === undefined
      ? undefined
      : {
          backend: 'shm',
          owner: options.owner ?? '',
          epoch: options.epoch ?? 0,
          pid: process.pid,
          fd: facts.poolFd,
          bytes: facts.poolBytes,
        };
  let sink: EngineSink | undefined;

  return {
    card,
    limits: {
      slots: facts.slots,
      kvBlocks: (facts.slots * facts.sequenceTokens) / blockTokens,
      sequenceTokens: card.contextTokens,
    },
    pool,
    start(to) {
      sink = to;
      native.start((step) => {
        // A throw here would surface inside the addon: the sink is the actor's, and it is guarded there; this is the last fence.
        try {
          if (step.died !== undefined) sink?.died(failure(step.died[1], step.died[2]));
          else sink?.step(unpack(step));
        } catch (error) {
          process.emitWarning(`engine sink threw: ${String(error)}`);
        }
      });
    },
    generate: (request) => verdict(native.generate(request)),
    prefill: (request, haveBlocks, leaseMs, prefix) =>
      verdict(
        prefix === undefined
          ? native.prefill(request, haveBlocks, leaseMs)
          : native.prefill(request, haveBlocks, leaseMs, prefix, ...pack(prefix.blocks)),
      ),
    lend: (key) => verdict(native.lend(key)),
    reserve(request) {
      const answer = native.reserve(request);
      return typeof answer === 'number' ? { ok: true, haveBlocks: answer } : refusal(answer);
    },
    pull: (key, from, blocks) => verdict(native.pull(key, from, ...pack(blocks))),
    commit: (key, handoff, first) => verdict(native.commit(key, handoff, ...pack(handoff.blocks), first)),
    cancel: (key) => native.cancel(key),
    release: (key) => native.release(key),
    load: () => native.load(),
    cpu() {
      const [totalMs, decodeMs] = native.cpu();
      return { totalMs, decodeMs };
    },
    stop: () => native.stop(),
  };
}

const failure = (code: string, message: string): EngineError => ({ code: code as EngineErrorCode, message });
const refusal = ([code, message]: readonly [string, string]) => ({ ok: false, ...failure(code, message) }) as const;
const verdict = (answer: NativeAnswer) => (answer === undefined ? ({ ok: true } as const) : refusal(answer));

function pack(blocks: readonly BlockRef[]): [Float64Array, BigUint64Array] {
  const numbers = new Float64Array(4 * blocks.length);
  const hashes = new BigUint64Array(2 * blocks.length);
  blocks.forEach((block, i) => {
    numbers.set([block.index, block.tokens, block.offset, block.bytes], 4 * i);
    hashes[2 * i] = hashFromHex(block.checksum);
    hashes[2 * i + 1] = hashFromHex(block.hash);
  });
  return [numbers, hashes];
}

function unpackBlocks(numbers: Float64Array, hashes: BigUint64Array): BlockRef[] {
  return Array.from({ length: hashes.length / 2 }, (_, i) => {
    const [index = 0, tokens = 0, offset = 0, bytes = 0] = numbers.subarray(4 * i);
    const [checksum = 0n, hash = 0n] = hashes.subarray(2 * i);
    return { index, tokens, offset, bytes, checksum: hashToHex(checksum), hash: hashToHex(hash) };
  });
}

/** Rows of `width` numbers each. */
function* rows(packed: Uint32Array, width: number): Generator<Uint32Array> {
  for (let i = 0; i < packed.length; i += width) yield packed.subarray(i, i + width);
}

function unpackTokens(packed: Uint32Array, logprobs: readonly Float64Array[]): EngineToken[] {
  const tokens: EngineToken[] = [];
  // Indexed, not through rows(): this runs for every token of every stream.
  for (let i = 0; i < packed.length; i += tokenFields) {
    const token = {
      key: packed[i] as number,
      choice: packed[i + 1] as number,
      position: packed[i + 2] as number,
      token: packed[i + 3] as number,
      finish: packed[i + 4] as number,
    };
    const at = packed[i + 5] as number;
    const flat = at === none ? undefined : logprobs[at];
    if (flat === undefined) {
      tokens.push(token);
      continue;
    }
    const top = Array.from(
      { length: (flat.length - 1) / 2 },
      (_, k) => [flat[1 + 2 * k], flat[2 + 2 * k]] as [number, number],
    );
    tokens.push({ ...token, logprobs: [flat[0] as number, top] });
  }
  return tokens;
}

function unpack(step: NativeStep): EngineStep {
  return {
    steps: step.steps,
    tokens: unpackTokens(step.tokens, step.logprobs),
    progress: Array.from(rows(step.progress, 4), (row) => Array.from(row) as [number, number, number, number]),
    exported: step.exported.map(([key, numbers, hashes]) => ({ key, blocks: unpackBlocks(numbers, hashes) })),
    prefilled: Array.from(rows(step.prefilled, 2), ([key = 0, cachedTokens = 0]) => ({ key, cachedTokens })),
    committed: Array.from(step.committed),
    failed: step.failed.map(([key, code, message]) => ({ key, ...failure(code, message) })),
    ...(step.cache && { cache: unpackCache(...step.cache) }),
  };
}

/** The prefix cache is what a prompt is served from without computing: routers count it as the device's, wherever its bytes lie. */
function unpackCache(runs: Uint32Array, hashes: BigUint64Array): KvOp[] {
  let at = 0;
  return Array.from(rows(runs, 2), ([stored, count = 0]) => {
    const from = at;
    at += count;
    return { op: stored === 1 ? 'stored' : 'removed', tier: 'device', hashes: hashes.slice(from, at) };
  });
}
