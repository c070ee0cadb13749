/** Whether a request's answer depends on its neighbours, on the cache or on where its prompt was computed. It must not. */
import type { Bench } from './bench.js';
import { type Answer, type Ask, drive, type EngineDriver, greedy, promptOf } from './engine-driver.js';
import { benchModel, openEngine } from './model.js';
import { type Figure, figure } from './outcome.js';

const answerTokens = 32;
const seeded = { ...greedy, temperature: 0.9, topP: 0.95, topK: 60, repetitionPenalty: 1.1, seed: 42 };

export const exactnessBench: Bench = {
  summary: 'equal answers alone, batched, prefix-cached and handed off, greedy and seeded',
  help: '  --prompts N         prompts of 40 to 292 tokens (64)',
  options: { prompts: { type: 'string' } },
  async run(options, progress) {
    const count = Number(options.prompts ?? 64);
    const model = await benchModel();
    // One thread: nothing here is timed, and two on a busy machine wait for each other.
    const shared = { sequenceTokens: 512, threads: 1 };
    const open = async (extra: object) => {
      const engine = await openEngine(model, { ...shared, ...extra });
      return { driver: drive(engine), vocabTokens: engine.card.vocabTokens };
    };
    const figures: Figure[] = [];
    const cachedTokens: number[] = [];
    for (const [name, sampling] of Object.entries({ greedy, seeded })) {
      // Each engine is gone before the next comes: two would share the cores.
      const plain = await open({ slots: 16, maxWaiting: count, cacheBytes: 0 });
      const asks = Array.from(
        { length: count },
        (_, id): Ask => ({
          prompt: promptOf(id, 40 + ((id * 61) % 253), plain.vocabTokens),
          maxTokens: answerTokens,
          sampling,
        }),
      );
      progress(`${name}: alone, then batched`);
      const alone = await inTurn(asks, (ask) => plain.driver.generate(ask));
      const batched = await Promise.all(asks.map((ask) => plain.driver.generate(ask)));
      await plain.driver.stop();

      progress(`${name}: prefix-cached`);
      const caching = await open({ slots: 4 });
      await inTurn(asks, (ask) => caching.driver.generate(ask));
      const cached = await inTurn(asks, (ask) => caching.driver.generate(ask));
      await caching.driver.stop();
      cachedTokens.push(cached.reduce((sum, answer) => sum + answer.cached, 0));

      progress(`${name}: handed off`);
      const p = await open({ slots: 4, exportBlocks: 64, owner: 'bench-prefill' });
      const d = await open({ slots: 16, owner: 'bench-decode' });
      const handed = await inParallel(8, asks, (ask) => handOff(p.driver, d.driver, ask));
      await Promise.all([p.driver.stop(), d.driver.stop()]);

      for (const [how, answers] of Object.entries({ batched, cached, handed })) {
        const equal = answers.filter((answer, index) => same(answer, alone[index] as Answer)).length;
        const label = { batched: 'batched', cached: 'prefix-cached', handed: 'handed off' }[how] ?? how;
        figures.push(
          figure(`${name}_${how}`, `${name}: ${label} = alone`, `% of ${count} prompts`, (100 * equal) / count, {
            atLeast: 100,
          }),
        );
      }
    }
    return { figures, notes: [`prompt tokens that came from the cache: ${cachedTokens.join(' and ')}`] };
  },
};

async function inTurn<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  return inParallel(1, items, work);
}

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
