/** How many tokens a second the embedded engine makes, beside llama.cpp's own server on the same weights and kernels. */
import { availableParallelism } from 'node:os';
import type { Bench } from './bench.js';
import { startDynact } from './dynact-node.js';
import { drive, type EngineDriver, promptOf } from './engine-driver.js';
import { findLlamaServer, startLlamaServer } from './llama-server.js';
import { generateLoad } from './loadgen.js';
import { benchModel, openEngine } from './model.js';
import { type Figure, figure, ratio } from './outcome.js';
import { interleaved, median } from './statistics.js';

const promptTokens = 64;
const answerTokens = 64;
const clientCounts = [1, 8, 32];
/** Requests before the first round. */
const warmUp = 2;
/** What llama.cpp's server reaches is not known in this run: the rates of a quiet two-core machine. */
const quietRates: Readonly<Record<number, number>> = { 1: 245, 8: 550, 32: 680 };

export const engineBench: Bench = {
  summary: 'output tokens per second at 1, 8 and 32 clients, 64 + 64 tokens, aggregated',
  help: `  --rounds N            repetitions of each side (2)
  --llama-server PATH   llama.cpp's server to measure beside; "build" compiles it into the cache folder first, once
                        (the one in the cache, if there is one)
  --http                dynact's side through HTTP and the whole actor stack instead of the engine alone`,
  options: { rounds: { type: 'string' }, 'llama-server': { type: 'string' }, http: { type: 'boolean' } },
  async run(options, progress) {
    const rounds = Number(options.rounds ?? 2);
    const server = await findLlamaServer(options['llama-server'] as string | undefined);
    const model = await benchModel();
    const threads = availableParallelism();
    const slots = Math.max(...clientCounts);
    const notes = [`weights ${model.format}, ${threads} threads`];
    const ours = options.http === true ? await throughHttp(slots) : await direct(model, slots, threads);
    const figures: Figure[] = [];
    const details: Record<string, unknown> = {};
    try {
      for (const clients of clientCounts) {
        const name = `${clients} ${clients === 1 ? 'client' : 'clients'}`;
        const requests = Math.max(clients, 3);
        const peer = server === undefined ? undefined : await startLlamaServer(server, model.path, clients, threads);
        const sides = {
          dynact: ours.rate,
          ...(peer && { peer: (...load: Load) => peer.rate(...load, promptTokens, answerTokens) }),
        };
        try {
          for (const rate of Object.values(sides)) await rate(Math.min(clients, warmUp), warmUp);
          const results = await interleaved(
            rounds,
            mapped(sides, (rate, side) => async (round) => {
              const got = await rate(clients, requests);
              progress(`${name}, round ${round + 1} of ${rounds}: ${side} ${got.toFixed(1)} tok/s`);
              return got;
            }),
          );
          figures.push(verdict(clients, `output rate, ${name}`, results.dynact ?? [], results.peer));
          details[`rates_${clients}`] = results;
          notes.push(`${name}, tok/s by round: ${Object.entries(results).map(rounded).join('; ')}`);
        } finally {
          await peer?.stop();
        }
      }
      const outside = ours.outsideDecode?.();
      if (outside !== undefined) {
        const what = 'engine thread outside llama_decode, greedy';
        figures.push(figure('outside_decode', what, '% of its CPU', outside, { atMost: 1 }));
      }
    } finally {
      await ours.stop();
    }
    if (server === undefined)
      notes.push('no peer: --llama-server build makes one. The targets are rates of a quiet machine of 2 cores');
    return { figures, details, notes };
  },
};

function verdict(clients: number, name: string, dynact: readonly number[], peer?: readonly number[]): Figure {
  return peer === undefined
    ? figure(`rate_${clients}`, name, 'tok/s', median(dynact), { atLeast: quietRates[clients] as number })
    : ratio(`rate_ratio_${clients}`, name, 'tok/s', median(dynact), median(peer), { atLeast: 1 });
}

const rounded = ([side, rates]: [string, readonly number[]]) =>
  `${side} ${rates.map((rate) => rate.toFixed(1)).join(', ')}`;

function mapped<A, B>(all: Readonly<Record<string, A>>, to: (each: A, name: string) => B): Record<string, B> {
  return Object.fromEntries(Object.entries(all).map(([name, each]) => [name, to(each, name)]));
}

/** Clients, and requests of all of them together. */
type Load = [clients: number, requests: number];

interface Side {
  /** Output tokens per second. */
  rate(...load: Load): Promise<number>;
  /** Per cent of the engine thread's CPU that llama_decode did not use, so far. */
  outsideDecode?(): number;
  stop(): Promise<void>;
}

async function direct(model: Awaited<ReturnType<typeof benchModel>>, slots: number, threads: number): Promise<Side> {
  const engine = await openEngine(model, { slots, threads, sequenceTokens: 256, cacheBytes: 0 });
  const driver = drive(engine);
  let asked = 0;
  return {
    rate: (clients, requests) =>
      closedLoop(driver, clients, requests, () => promptOf(asked++, promptTokens, engine.card.vocabTokens)),
    outsideDecode() {
      const { totalMs, decodeMs } = engine.cpu();
      return (100 * (totalMs - decodeMs)) / totalMs;
    },
    stop: () => driver.stop(),
  };
}

async function closedLoop(
  driver: EngineDriver,
  clients: number,
  requests: number,
  prompt: () => Uint32Array,
): Promise<number> {
  let left = requests;
  const start = performance.now();
  const client = async (): Promise<void> => {
    while (left-- > 0) await driver.generate({ prompt: prompt(), maxTokens: answerTokens });
  };
  await Promise.all(Array.from({ length: clients }, client));
  return (requests * answerTokens * 1000) / (performance.now() - start);
}

async function throughHttp(slots: number): Promise<Side> {
  const node = await startDynact({
    flags: [
      '--prefill',
      '0',
      '--decode',
      '1',
      '--slots',
      String(slots),
      '--context-tokens',
      '256',
      '--kv-cache-bytes',
      '0',
    ],
  });
  // The first token id differs, so no two prompts share a block.
  const prompt = `[@@N@@,${[...promptOf(1, promptTokens - 1, 40_000)].join(',')}]`;
  const body = `{"model":"${node.model}","prompt":${prompt},"max_tokens":${answerTokens},"temperature":0,"ignore_eos":true,"stream":true}`;
  return {
    async rate(clients, requests) {
      const { seconds } = await generateLoad({ port: node.port, clients, requests, body, path: '/v1/completions' });
      return (requests * answerTokens) / seconds;
    },
    stop: () => node.stop(),
  };
}
