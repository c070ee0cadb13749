/** An engine whose requests are promises, with the time at which each token came. */
import type { Engine, EngineRequest, EngineStep } from '../gpu/index.js';
import { type BlockRef, finishCodes, type Handoff, type Sampling } from '../transport/index.js';

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

export interface Ask {
  readonly prompt: Uint32Array;
  readonly maxTokens: number;
  readonly sampling?: Sampling;
}

export interface Answer {
  readonly tokens: readonly number[];
  /** When each token came out of the engine: milliseconds on a clock that all processes of the machine share. */
  readonly at: readonly number[];
  /** Prompt tokens that came from the prefix cache. */
  readonly cached: number;
}

/** A prompt computed by one engine, for another to go on from. */
export interface Prefilled {
  /** Of the prefilling engine; frees what it holds for the hand-off. */
  readonly key: number;
  readonly handoff: Handoff;
  readonly first: number;
  readonly at: number;
}

export interface EngineDriver {
  generate(ask: Ask): Promise<Answer>;
  prefill(ask: Ask): Promise<Prefilled>;
  /** Goes on from a hand-off. The answer holds the first token too, with the time at which the hand-off was committed. */
  takeOver(ask: Ask, prefilled: Prefilled): Promise<Answer>;
  release(key: number): void;
  /** Ends every request that is under way; each answers with the tokens it has. */
  endAll(): Promise<void>;
  stop(): Promise<void>;
}

interface Pending {
  readonly tokens: number[];
  readonly at: number[];
  readonly blocks: BlockRef[];
  cached: number;
  readonly kind: 'generate' | 'prefill' | 'decode';
  readonly resolve: (pending: Pending) => void;
  readonly reject: (error: Error) => void;
}

const leaseMs = 600_000;

export const sharedNow = (): number => performance.timeOrigin + performance.now();

export function drive(engine: Engine): EngineDriver {
  const pending = new Map<number, Pending>();
  let keys = 0;

  const settle = (key: number, how: (entry: Pending) => void) => {
    const entry = pending.get(key);
    if (entry === undefined) return;
    pending.delete(key);
    how(entry);
  };
  const step = (news: EngineStep): void => {
    const now = sharedNow();
    for (const { key, blocks } of news.exported) pending.get(key)?.blocks.push(...blocks);
    for (const [key, , , cached] of news.progress) {
      const entry = pending.get(key);
      if (entry !== undefined) entry.cached = cached;
    }
    for (const key of news.committed) pending.get(key)?.at.push(now);
    for (const { key, token, finish } of news.tokens) {
      const entry = pending.get(key);
      if (entry === undefined) continue;
      if (token >= 0) {
        entry.tokens.push(token);
        entry.at.push(now);
      }
      if (finish !== finishCodes.none && entry.kind !== 'prefill') settle(key, ({ resolve }) => resolve(entry));
    }
    for (const { key } of news.prefilled) settle(key, (entry) => entry.resolve(entry));
    for (const { key, code, message } of news.failed) {
      settle(key, ({ reject }) => reject(new Error(`${code}: ${message}`)));
    }
  };
  engine.start({
    step,
    died: ({ message }) => {
      for (const key of [...pending.keys()]) settle(key, ({ reject }) => reject(new Error(message)));
    },
  });

  const requestOf = (key: number, { prompt, maxTokens, sampling }: Ask): EngineRequest => ({
    key,
    prompt,
    choices: [{ index: 0, generated: new Uint32Array(0) }],
    sampling: sampling ?? greedy,
    maxTokens,
    minTokens: 0,
    ignoreEos: true,
    logprobs: 0,
    cacheSalt: '',
  });
  const wait = (key: number, kind: Pending['kind'], begin: () => void): Promise<Pending> =>
    new Promise((resolve, reject) => {
      pending.set(key, { tokens: [], at: [], blocks: [], cached: 0, kind, resolve, reject });
      try {
        begin();
      } catch (error) {
        pending.delete(key);
        reject(error as Error);
      }
    });
  const demand = (verdict: { ok: true } | { ok: false; code: string; message: string }) => {
    if (!verdict.ok) throw new Error(`${verdict.code}: ${verdict.message}`);
  };

  return {
    async generate(ask) {
      const key = ++keys;
      return wait(key, 'generate', () => demand(engine.generate(requestOf(key, ask))));
    },
    async prefill(ask) {
      const key = ++keys;
      const { tokens, at, blocks } = await wait(key, 'prefill', () =>
        demand(engine.prefill(requestOf(key, ask), 0, leaseMs)),
      );
      const { pool, card } = engine;
      if (pool === undefined) throw new Error('this engine exports nothing');
      const { fingerprint, kvType, kvLayout: layout, blockTokens } = card;
      const promptTokens = ask.prompt.length;
      const handoff = { pool, fingerprint, kvType, layout, blockTokens, promptTokens, firstBlock: 0, blocks, leaseMs };
      return { key, handoff, first: tokens[0] as number, at: at[0] as number };
    },
    async takeOver(ask, { handoff, first }) {
      const key = ++keys;
      const answer = await wait(key, 'decode', () => {
        demand(engine.reserve(requestOf(key, ask)));
        demand(engine.commit(key, handoff, [{ choice: 0, token: first, finished: false }]));
      });
      return { ...answer, tokens: [first, ...answer.tokens] };
    },
    release: (key) => engine.release(key),
    async endAll() {
      for (const key of [...pending.keys()]) {
        engine.cancel(key);
        settle(key, (entry) => entry.resolve(entry));
      }
    },
    stop: () => engine.stop(),
  };
}

/** Token ids that depend on `id` alone, away from the vocabulary's control tokens. Different ids share no first block. */
export function promptOf(id: number, tokens: number, vocabTokens: number): Uint32Array {
  let state = (id + 1) * 0x9e3779b9;
  return Uint32Array.from({ length: tokens }, () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5;
    state ^= state >>> 13;
    return 100 + ((state >>> 0) % (vocabTokens - 200));
  });
}
