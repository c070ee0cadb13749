import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLlamaEngine, type EngineRequest, type LlamaEngine, type LlamaEngineOptions } from '../../gpu/index.js';
import { writeTinyModel } from '../../gpu/tiny-model.js';
import type { BlockRef, Handoff, KvOp, LentPrefix, Sampling } from '../../transport/index.js';

export const greedy: Sampling = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  frequencyPenalty: 0,
  presencePenalty: 0,
  repetitionPenalty: 1,
  logitBias: [],
  seed: 1,
};
export const seeded: Sampling = { ...greedy, temperature: 0.9, topP: 0.95, topK: 60, repetitionPenalty: 1.1, seed: 42 };

let tiny: string | undefined;
/** A random-weight model, written once per run. */
export function tinyModelFile(): string {
  if (tiny === undefined) {
    const folder = mkdtempSync(join(tmpdir(), 'dynact-tiny-'));
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
    tiny = join(folder, 'tiny.gguf');
    writeTinyModel(tiny);
  }
  return tiny;
}

/** The default model in the format that workers load; undefined when set-up has not run. */
export function defaultModelFile(): string | undefined {
  const cache = process.env.DYNACT_CACHE || join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dynact');
  const manifest = join(cache, 'manifest.json');
  if (!existsSync(manifest)) return undefined;
  const { weights } = JSON.parse(readFileSync(manifest, 'utf8')) as { weights?: { path: string } };
  return weights !== undefined && existsSync(weights.path) ? weights.path : undefined;
}

/** Token ids that depend on `id` alone. */
export function prompt(id: number, length: number, vocabTokens: number): Uint32Array {
  const digest = createHash('sha512').update(String(id)).digest();
  return Uint32Array.from(
    { length },
    (_, i) => ((digest.readUInt32LE((i * 4) % 60) + i * 7919) % (vocabTokens - 10)) + 5,
  );
}

export interface Result {
  readonly tokens: number[];
  readonly cached: number;
  readonly blocks: BlockRef[];
  readonly failed?: { readonly code: string; readonly message: string };
}

/** What the receiver of a hand-off needs of the other side, which may be another process. */
export interface Sender {
  readonly engine: Pick<LlamaEngine, 'card' | 'pool' | 'release'>;
  readonly prefill: Rig['prefill'];
}

/** An engine whose requests are promises. */
export interface Rig {
  readonly engine: LlamaEngine;
  readonly steps: () => number;
  /** Blocks of the prefix cache by what the engine has said of them. */
  readonly held: ReadonlySet<bigint>;
  generate(prompt: Uint32Array, sampling: Sampling, options?: Partial<EngineRequest>): Promise<Result>;
  /** Prefill at `from`, decode here: what comes out of both together, and what `from` had in its cache. */
  receive(from: Sender, prompt: Uint32Array, sampling: Sampling, options?: ReceiveOptions): Promise<Result>;
  prefill(
    prompt: Uint32Array,
    sampling: Sampling,
    haveBlocks: number,
    options?: Partial<EngineRequest>,
    prefix?: LentPrefix,
  ): Promise<Result & { key: number }>;
}

interface ReceiveOptions extends Partial<EngineRequest> {
  /** Changes the descriptor on its way. */
  readonly damage?: (handoff: Handoff) => Handoff;
  /** The receiver lends what it has of the prompt, as this makes of it. */
  readonly lend?: (prefix: LentPrefix) => LentPrefix;
}

interface Waiting {
  tokens: number[];
  cached: number;
  blocks: BlockRef[];
  open: number;
  prefill: boolean;
  done: (result: Result) => void;
}

let keys = 0;

export async function openRig(path: string, options: Partial<LlamaEngineOptions> = {}): Promise<Rig> {
  const engine = await createLlamaEngine({
    model: 'm',
    path,
    sourceHash: 'spec',
    format: 'source',
    maxWaiting: 256,
    ...options,
  });
  const waiting = new Map<number, Waiting>();
  const end = (key: number, failed?: Result['failed']) => {
    const entry = waiting.get(key);
    waiting.delete(key);
    if (entry === undefined) return;
    const { tokens, cached, blocks } = entry;
    entry.done({ tokens, cached, blocks, ...(failed === undefined ? {} : { failed }) });
  };
  let steps = 0;
  const lending = new Map<number, (blocks: readonly BlockRef[]) => void>();
  const held = new Set<bigint>();
  const apply = (op: KvOp) => {
    if (op.op === 'cleared') throw new Error('a running cache is not cleared');
    for (const hash of op.hashes) {
      if (held.has(hash) !== (op.op === 'removed')) throw new Error(`${op.op} says nothing new`);
      if (op.op === 'stored') held.add(hash);
      else held.delete(hash);
    }
  };
  engine.start({
    step(step) {
      steps++;
      step.cache?.forEach(apply);
      for (const { key, blocks } of step.exported) {
        waiting.get(key)?.blocks.push(...blocks);
        lending.get(key)?.(blocks);
        lending.delete(key);
      }
      for (const [key, , , cached] of step.progress) {
        const entry = waiting.get(key);
        if (entry !== undefined) entry.cached = cached;
      }
      for (const { key, token, finish } of step.tokens) {
        const entry = waiting.get(key);
        entry?.tokens.push(token);
        if (entry !== undefined && finish !== 0 && --entry.open === 0 && !entry.prefill) end(key);
      }
      for (const { key } of step.prefilled) end(key);
      for (const { key, code, message } of step.failed) end(key, { code, message });
    },
    died(error) {
      throw new Error(error.message);
    },
  });
  const request = (
    key: number,
    tokens: Uint32Array,
    sampling: Sampling,
    extra: Partial<EngineRequest>,
  ): EngineRequest => ({
    key,
    prompt: tokens,
    choices: [{ index: 0, generated: new Uint32Array() }],
    sampling,
    maxTokens: 16,
    minTokens: 0,
    ignoreEos: true,
    logprobs: 0,
    cacheSalt: '',
    ...extra,
  });
  const wait = (asked: EngineRequest, prefill: boolean) =>
    new Promise<Result>((done) => {
      waiting.set(asked.key, { tokens: [], cached: 0, blocks: [], open: asked.choices.length, prefill, done });
    });
  return {
    engine,
    steps: () => steps,
    held,
    generate(tokens, sampling, extra = {}) {
      const asked = request(++keys, tokens, sampling, extra);
      const result = wait(asked, false);
      const verdict = engine.generate(asked);
      if (!verdict.ok) end(asked.key, verdict);
      return result;
    },
    async prefill(tokens, sampling, haveBlocks, extra = {}, prefix) {
      const asked = request(++keys, tokens, sampling, extra);
      const result = wait(asked, true);
      const verdict = engine.prefill(asked, haveBlocks, 10_000, prefix);
      if (!verdict.ok) end(asked.key, verdict);
      return { ...(await result), key: asked.key };
    },
    async receive(from, tokens, sampling, { damage = (same: Handoff) => same, lend, ...extra } = {}) {
      const asked = request(++keys, tokens, sampling, extra);
      const reserved = engine.reserve(asked);
      if (!reserved.ok) return { tokens: [], cached: 0, blocks: [], failed: reserved };
      let prefix: LentPrefix | undefined;
      if (lend !== undefined && engine.pool !== undefined) {
        const lent = new Promise<readonly BlockRef[]>((done) => lending.set(asked.key, done));
        const can = engine.lend(asked.key);
        if (!can.ok) throw new Error(can.message);
        const { fingerprint, kvType, kvLayout: layout } = engine.card;
        prefix = lend({ pool: engine.pool, fingerprint, kvType, layout, blocks: [...(await lent)] });
      }
      const { failed, ...sent } = await from.prefill(tokens, sampling, reserved.haveBlocks, extra, prefix);
      if (failed !== undefined || from.engine.pool === undefined) throw new Error(failed?.message ?? 'no pool');
      const { fingerprint, kvType, kvLayout } = from.engine.card;
      const result = wait(asked, false);
      const verdict = engine.commit(
        asked.key,
        damage({
          pool: from.engine.pool,
          fingerprint,
          kvType,
          layout: kvLayout,
          blockTokens: 64,
          promptTokens: tokens.length,
          firstBlock: reserved.haveBlocks,
          blocks: sent.blocks,
          leaseMs: 10_000,
        }),
        sent.tokens.map((token, choice) => ({ choice, token, finished: false })),
      );
      if (!verdict.ok) end(asked.key, verdict);
      const rest = await result;
      from.engine.release(sent.key);
      return { ...rest, tokens: [...sent.tokens, ...rest.tokens], cached: sent.cached };
    },
  };
}
