/** Whether a request's answer depends on its neighbours, on the cache or on where its prompt was computed. It must not. */
import type { LlamaEngineOptions } from '../gpu/index.js';
import type { Sampling } from '../transport/index.js';
import type { Bench } from './bench.js';
import { type Answer, type Ask, drive, type EngineDriver, greedy, promptOf } from './engine-driver.js';
import { type BenchModel, benchModel, openEngine } from './model.js';
import { type Figure, figure } from './outcome.js';

const answerTokens = 16;
const blockTokens = 64;
const samplings = {
  greedy,
  seeded: { ...greedy, temperature: 0.9, topP: 0.95, topK: 60, repetitionPenalty: 1.1, seed: 42 },
};

/** Most prompts are shorter than one prefill chunk, every eighth is longer: 20 to 344 tokens. */
const lengthOf = (id: number) => (id % 8 === 7 ? 257 + ((id * 11) % 88) : 20 + ((id * 37) % 120));

export const exactnessBench: Bench = {
  summary: 'equal answers alone, batched, prefix-cached and handed off, greedy and seeded',
  help: '  --prompts N         prompts of 20 to 344 tokens, with answers of 16 (64)',
  options: { prompts: { type: 'string' } },
  async run(options, progress) {
    const count = Number(options.prompts ?? 64);
    const model = await benchModel();
    // Nothing here is timed, so each way of sampling has a core.
    const ways = Object.entries(samplings).map(([name, sampling]) => compare(model, count, name, sampling, progress));
    const compared = await Promise.all(ways);
    return {
      figures: compared.flatMap(({ figures }) => figures),
      notes: compared.map(({ note }) => note),
    };
  },
};

async function compare(
  model: BenchModel,
  count: number,
  name: string,
  sampling: Sampling,
  progress: (text: string) => void,
): Promise<{ figures: Figure[]; note: string }> {
  const open = (options: Partial<LlamaEngineOptions>) =>
    openEngine(model, { sequenceTokens: 512, threads: 1, ...options });
  const engine = await open({ slots: 4 });
  const asks = Array.from({ length: count }, (_, id): Ask => {
    const prompt = promptOf(id, lengthOf(id), engine.card.vocabTokens);
    return { prompt, maxTokens: answerTokens, sampling };
  });
  const figures: Figure[] = [];
  const judge = (key: string, how: string, answers: readonly Answer[], alone: readonly Answer[]) => {
    const equal = answers.filter((answer, index) => same(answer, alone[index] as Answer)).length;
    progress(`${name}: ${how} = alone for ${equal} of ${count}`);
    const share = (100 * equal) / count;
    figures.push(figure(`${name}_${key}`, `${name}: ${how} = alone`, `% of ${count} prompts`, share, { atLeast: 100 }));
  };

  // Every prompt is new to it, so the first round finds nothing in its cache; the second finds all whole blocks.
  const one = drive(engine);
  progress(`${name}: alone`);
  const alone = await inParallel(1, asks, (ask) => one.generate(ask));
  if (alone.some(({ cached }) => cached > 0)) throw new Error('an answer that should be computed came from the cache');
  const cached = await inParallel(4, asks, (ask) => one.generate(ask));
  if (cached.some((answer, index) => answer.cached !== wholeBlocks(asks[index] as Ask)))
    throw new Error('a prompt that should come from the cache was computed');
  await one.stop();
  judge('cached', 'prefix-cached', cached, alone);

  const many = drive(await open({ slots: 16, maxWaiting: count, cacheBytes: 0 }));
  const batched = await Promise.all(asks.map((ask) => many.generate(ask)));
  await many.stop();
  judge('batched', 'batched', batched, alone);

  const p = drive(await open({ slots: 4, exportBlocks: 64, owner: `bench-prefill-${name}` }));
  const d = drive(await open({ slots: 16, owner: `bench-decode-${name}` }));
  const handed = await inParallel(8, asks, (ask) => handOff(p, d, ask));
  await Promise.all([p.stop(), d.stop()]);
  judge('handed', 'handed off', handed, alone);

  const fromCache = cached.reduce((sum, answer) => sum + answer.cached, 0);
  const promptTokens = asks.reduce((sum, { prompt }) => sum + prompt.length, 0);
  const different = new Set(alone.map(({ tokens }) => tokens.join())).size;
  return {
    figures,
    note: `${name}: ${fromCache} of ${promptTokens} prompt tokens from the cache; ${different} different answers`,
  };
}

/** Prompt tokens that a full cache saves: at least one token is computed. */
const wholeBlocks = ({ prompt }: Ask) => Math.floor((prompt.length - 1) / blockTokens) * blockTokens;

async function inParallel<T, R>(width: number, items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  let next = 0;
  const worker = async (): Promise<void> => {
    for (let index = next++; index < items.length; index = next++) results[index] = await work(items[index] as T);
  };
  await Promise.all(Array.from({ length: width }, worker));
  return results;
}

async function handOff(p: EngineDriver, d: EngineDriver, ask: Ask): Promise<Answer> {
  const prefilled = await p.prefill(ask);
  const answer = await d.takeOver(ask, prefilled);
  p.release(prefilled.key);
  return answer;
}

const same = (a: Answer, b: Answer) =>
  a.tokens.length === b.tokens.length && a.tokens.every((token, index) => token === b.tokens[index]);
