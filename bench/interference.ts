/**
 * What streams that decode notice of long prompts that arrive: P and D on one core each, beside one worker on the same cores that
 * prefills in chunks of 256 between its decode steps.
 */
import type { Bench } from './bench.js';
import { type EngineDriver, promptOf } from './engine-driver.js';
import { startEngineHost } from './engine-host.js';
import { benchModel } from './model.js';
import { figure, ratio } from './outcome.js';
import { hasTaskset } from './processes.js';
import { interleaved, median, quantile } from './statistics.js';

const streams = 8;
const longTokens = 2048;
const answerTokens = 64;
/** More than any run makes: a stream that ended early would flatter the result. */
const streamTokens = 1900;
const sequenceTokens = 2304;

interface Side {
  /** Computes a long prompt and decodes its answer. */
  arrive(id: number): Promise<{ readonly firstAt: number }>;
  readonly decode: EngineDriver;
  readonly vocabTokens: number;
  stop(): Promise<void>;
}

interface Run {
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
  readonly firstTokenMs: number;
}

export const interferenceBench: Bench = {
  summary: 'inter-token latency of 8 streams while 2,048-token prompts arrive',
  help: `  --rounds N          repetitions of each side (2)
  --prompts N         prompts that arrive, one after the other, in a repetition (3)`,
  options: { rounds: { type: 'string' }, prompts: { type: 'string' } },
  async run(options, progress) {
    const rounds = Number(options.rounds ?? 2);
    const prompts = Number(options.prompts ?? 3);
    const model = await benchModel();
    const shared = { sequenceTokens, cacheBytes: 0, prefillChunk: 256 };
    const slots = streams + 1;

    const aggregated = async (): Promise<Side> => {
      const host = await startEngineHost(model, { ...shared, slots, threads: 2 }, '0,1');
      return {
        decode: host,
        vocabTokens: host.vocabTokens,
        stop: host.stop,
        async arrive(id) {
          const { at } = await host.generate({
            prompt: promptOf(id, longTokens, host.vocabTokens),
            maxTokens: answerTokens,
          });
          return { firstAt: at[0] as number };
        },
      };
    };
    const disaggregated = async (): Promise<Side> => {
      const [p, d] = await Promise.all([
        startEngineHost(model, { ...shared, slots: 2, threads: 1, exportBlocks: 64, owner: 'bench-prefill' }, '0'),
        startEngineHost(model, { ...shared, slots, threads: 1, owner: 'bench-decode' }, '1'),
      ]);
      return {
        decode: d,
        vocabTokens: d.vocabTokens,
        stop: async () => void (await Promise.all([p.stop(), d.stop()])),
        async arrive(id) {
          const ask = { prompt: promptOf(id, longTokens, d.vocabTokens), maxTokens: answerTokens };
          const prefilled = await p.prefill(ask);
          await d.takeOver(ask, prefilled);
          p.release(prefilled.key);
          return { firstAt: prefilled.at };
        },
      };
    };
    const measured = async (name: string, open: () => Promise<Side>) => {
      const side = await open();
      try {
        return await latencies(side, prompts);
      } finally {
        progress(`${name}: one repetition of ${rounds} done`);
        await side.stop();
      }
    };
    const results = await interleaved(rounds, {
      apart: () => measured('disaggregated', disaggregated),
      together: () => measured('aggregated', aggregated),
    });
    const of = (side: string, pick: (run: Run) => number) => median((results[side] ?? []).map(pick));
    const [p99, peerP99] = [of('apart', (run) => run.p99), of('together', (run) => run.p99)];
    return {
      figures: [
        {
          key: 'itl_p99_gain',
          name: 'inter-token latency, p99 (value: times better)',
          unit: 'ms',
          dynact: p99,
          peer: peerP99,
          value: peerP99 / p99,
          target: { atLeast: 5 },
        },
        ratio(
          'itl_p50_ratio',
          'inter-token latency, p50',
          'ms',
          of('apart', (run) => run.p50),
          of('together', (run) => run.p50),
        ),
        ratio(
          'itl_max_ratio',
          'inter-token latency, longest',
          'ms',
          of('apart', (run) => run.max),
          of('together', (run) => run.max),
        ),
        ratio(
          'ttft_ratio',
          'first token of the long prompts',
          'ms',
          of('apart', (run) => run.firstTokenMs),
          of('together', (run) => run.firstTokenMs),
        ),
        figure('itl_spread', 'p99 / p50, disaggregated', '', p99 / of('apart', (run) => run.p50), { atMost: 2 }),
      ],
      notes: [
        'the peer is one worker with both cores and prefill chunks of 256',
        ...(hasTaskset() ? [] : ['no taskset: the processes were not pinned, the figures are rough']),
      ],
      details: results,
    };
  },
};

async function latencies(side: Side, prompts: number): Promise<Run> {
  const asked = performance.now();
  await side.decode.generate({ prompt: promptOf(999, 64, side.vocabTokens), maxTokens: 1 });
  const promptMs = performance.now() - asked;
  const background = Array.from({ length: streams }, (_, stream) =>
    side.decode.generate({ prompt: promptOf(1000 + stream, 64, side.vocabTokens), maxTokens: streamTokens }),
  );
  // Until all of them decode.
  await new Promise((resolve) => setTimeout(resolve, promptMs * streams * 1.5));
  const from = performance.timeOrigin + performance.now();
  const first: number[] = [];
  for (let prompt = 0; prompt < prompts; prompt++) {
    const sent = performance.timeOrigin + performance.now();
    first.push((await side.arrive(prompt)).firstAt - sent);
  }
  const to = performance.timeOrigin + performance.now();
  await side.decode.endAll();
  const answers = await Promise.all(background);
  const gaps = answers.flatMap(({ tokens, at }) => {
    if (tokens.length >= streamTokens) throw new Error('a stream ended before the last prompt was answered');
    return at.slice(1).flatMap((when, index) => (when > from && when <= to ? [when - (at[index] as number)] : []));
  });
  return { p50: quantile(gaps, 0.5), p99: quantile(gaps, 0.99), max: quantile(gaps, 1), firstTokenMs: median(first) };
}
