import { expect } from 'chai';
import { sequenceHashes } from '../../gpu/index.js';
import { defaultModelFile, greedy, openRig, prompt, type Rig, seeded, tinyModelFile } from './llama-rig.js';

const lengths = [1, 5, 63, 64, 65, 100, 128, 200, 256, 300, 331, 450];

/** Alone = batched = prefix-cached = handed off = migrated, on one model file. */
function exactness(path: () => string, prompts: number): void {
  let alone: Rig;
  let batch: Rig;
  let sender: Rig;
  let receiver: Rig;
  const inputs = Array.from({ length: prompts }, (_, i) => i);
  const input = (i: number) => prompt(i, lengths[i % lengths.length] as number, alone.engine.card.vocabTokens);

  before(async () => {
    const limits = { sequenceTokens: 512 };
    alone = await openRig(path(), { ...limits, slots: 1, cacheBytes: 0 });
    batch = await openRig(path(), { ...limits, slots: 6 });
    sender = await openRig(path(), { ...limits, slots: 1, exportBlocks: 256, owner: 'sender' });
    receiver = await openRig(path(), { ...limits, slots: 6 });
  });
  after(() => Promise.all([alone, batch, sender, receiver].map(({ engine }) => engine.stop())));

  for (const [name, sampling] of [
    ['greedy', greedy],
    ['seeded', seeded],
  ] as const) {
    it(`gives the same ${name} tokens alone, batched, prefix-cached, handed off and migrated`, async () => {
      const expected: number[][] = [];
      for (const i of inputs) expected.push((await alone.generate(input(i), sampling)).tokens);
      expect(expected.every(({ length }) => length === 16)).to.equal(true);

      const batched = await Promise.all(inputs.map((i) => batch.generate(input(i), sampling)));
      expect(batched.map(({ tokens }) => tokens)).to.deep.equal(expected);

      const cached = await Promise.all(inputs.map((i) => batch.generate(input(i), sampling)));
      expect(cached.map(({ tokens }) => tokens)).to.deep.equal(expected);
      expect(cached.map((result) => result.cached)).to.deep.equal(
        inputs.map((i) => Math.floor((input(i).length - 1) / 64) * 64),
      );
      expect(batch.held.size).to.equal(batch.engine.load().cachedBlocks);
      expect(batch.held).to.deep.equal(new Set(inputs.flatMap((i) => [...sequenceHashes(input(i), 64, '')])));

      for (const pass of ['cold', 'with both caches warm']) {
        for (const i of inputs) {
          const { tokens, failed } = await receiver.receive(sender, input(i), sampling);
          expect(failed, `${pass} ${i}`).to.equal(undefined);
          expect(tokens, `${pass} ${i}`).to.deep.equal(expected[i]);
        }
      }

      for (const i of inputs) {
        const generated = Uint32Array.from(expected[i] as number[]).subarray(0, 1 + (i % 15));
        const choices = [{ index: 0, generated }];
        const rest = await alone.generate(input(i), sampling, { choices });
        expect([...generated, ...rest.tokens], `migrated ${i}`).to.deep.equal(expected[i]);
      }
    });
  }
}

describe('Exactness of the embedded engine', function () {
  this.timeout(240_000);
  describe('on a random-weight model', () => exactness(tinyModelFile, 24));

  describe('on the default model', () => {
    const path = defaultModelFile();
    if (path === undefined) it('needs the default model: run "npm run setup"');
    else exactness(() => path, 4);
  });
});
