import { copyFileSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { createLlamaEngine, openVocabulary } from '../../gpu/index.js';
import type { BlockRef, Handoff } from '../../transport/index.js';
import { greedy, openRig, prompt, type Rig, tinyModelFile } from './llama-rig.js';

type Damage = (handoff: Handoff) => Handoff;
/** Changes one block of the list. */
const block =
  (at: number, change: (block: BlockRef, all: readonly BlockRef[]) => Partial<BlockRef>): Damage =>
  (handoff) => ({
    ...handoff,
    blocks: handoff.blocks.map((b, i) => (i === at ? { ...b, ...change(b, handoff.blocks) } : b)),
  });
const flip = (hex: string) => (hex[0] === '0' ? '1' : '0') + hex.slice(1);

const damages: readonly (readonly [string, Damage])[] = [
  ['names another model', (h) => ({ ...h, fingerprint: `${h.fingerprint}x` })],
  ['names another KV type', (h) => ({ ...h, kvType: 'q8_0' })],
  ['names another layout', (h) => ({ ...h, layout: 'rows1-1x2-64-0' })],
  ['names another block size', (h) => ({ ...h, blockTokens: 32 })],
  ['names a shorter prompt', (h) => ({ ...h, promptTokens: h.promptTokens - 1 })],
  ['names a longer prompt', (h) => ({ ...h, promptTokens: h.promptTokens + 1 })],
  ['starts at a later block', (h) => ({ ...h, firstBlock: 1, blocks: h.blocks.slice(1) })],
  ['lacks its last block', (h) => ({ ...h, blocks: h.blocks.slice(0, -1) })],
  ['lacks a block in the middle', (h) => ({ ...h, blocks: h.blocks.filter((_, i) => i !== 1) })],
  ['has its blocks in reverse order', (h) => ({ ...h, blocks: [...h.blocks].reverse() })],
  ['has no blocks', (h) => ({ ...h, blocks: [] })],
  ['has a block twice', block(1, (_, all) => all[0] as BlockRef)],
  ["has another block's bytes", block(1, (_, all) => ({ offset: (all[0] as BlockRef).offset }))],
  ['has a wrong checksum', block(0, ({ checksum }) => ({ checksum: flip(checksum) }))],
  ["has another prompt's hash", block(0, ({ hash }) => ({ hash: flip(hash) }))],
  ['has a truncated block', block(2, ({ bytes }) => ({ bytes: bytes - 1 }))],
  ['has a block of fewer tokens', block(0, ({ tokens }) => ({ tokens: tokens - 1 }))],
  ['points behind the pool', block(0, () => ({ offset: 2 ** 40 }))],
  ['points across the end of the pool', (h) => block(0, () => ({ offset: h.pool.bytes - 100 }))(h)],
  ['points at an older pool', (h) => ({ ...h, pool: { ...h.pool, epoch: h.pool.epoch + 1 } })],
  ["points at another owner's pool", (h) => ({ ...h, pool: { ...h.pool, owner: 'stranger' } })],
  ['points at a file that is no pool', (h) => ({ ...h, pool: { ...h.pool, owner: 'unmapped', fd: 0 } })],
  ['points at a process that is gone', (h) => ({ ...h, pool: { ...h.pool, owner: 'departed', pid: 2 ** 22 + 1 } })],
];

describe('Faults of the embedded engine', function () {
  this.timeout(60_000);
  let sender: Rig;
  let receiver: Rig;
  before(async () => {
    sender = await openRig(tinyModelFile(), { slots: 1, exportBlocks: 64, owner: 'sender', sequenceTokens: 512 });
    receiver = await openRig(tinyModelFile(), { slots: 2, sequenceTokens: 512 });
  });
  after(() => Promise.all([sender.engine.stop(), receiver.engine.stop()]));

  damages.forEach(([what, damage], i) => {
    it(`refuses a hand-off that ${what}, and holds nothing afterwards`, async () => {
      const input = prompt(1000 + i, 200, receiver.engine.card.vocabTokens);
      const { failed, tokens } = await receiver.receive(sender, input, greedy, { damage });
      expect(failed?.code).to.be.oneOf(['GPU_HANDOFF_MISMATCH', 'GPU_HANDOFF_GONE']);
      expect(tokens).to.have.length(1); // the sender's own first token
      expect(receiver.engine.load().busySlots).to.equal(0);
    });
  });

  it('serves the next good hand-off after all the bad ones', async () => {
    const input = prompt(1, 200, receiver.engine.card.vocabTokens);
    const expected = await receiver.generate(input, greedy, { cacheSalt: 'other' });
    const { tokens, failed } = await receiver.receive(sender, input, greedy);
    expect(failed).to.equal(undefined);
    expect(tokens).to.deep.equal(expected.tokens);
    // Commands are in order: once this is through, the releases before it are too.
    await sender.generate(prompt(8, 5, sender.engine.card.vocabTokens), greedy);
    expect(sender.engine.load().exportedBlocks).to.equal(0);
  });

  it('says no further word of a request after cancel', async () => {
    const victim = receiver.generate(prompt(2, 300, receiver.engine.card.vocabTokens), greedy, {
      key: 900_001,
      maxTokens: 200,
    });
    let settled = false;
    void victim.then(() => {
      settled = true;
    });
    receiver.engine.cancel(900_001);
    await receiver.generate(prompt(3, 20, receiver.engine.card.vocabTokens), greedy);
    expect(settled).to.equal(false);
    expect(receiver.engine.load()).to.include({ busySlots: 0, waiting: 0, usedKvBlocks: 0 });
  });

  it('refuses requests it can never serve with the code that says why', () => {
    const base = {
      key: 900_100,
      prompt: Uint32Array.of(5),
      choices: [{ index: 0, generated: new Uint32Array() }],
      sampling: greedy,
      maxTokens: 4,
      minTokens: 0,
      ignoreEos: false,
      logprobs: 0,
      cacheSalt: '',
    };
    const code = (change: object) => {
      const verdict = receiver.engine.generate({ ...base, ...change });
      return verdict.ok ? 'accepted' : verdict.code;
    };
    expect(code({ prompt: new Uint32Array() })).to.equal('GPU_BAD_REQUEST');
    expect(code({ prompt: Uint32Array.of(4_000_000_000) })).to.equal('GPU_BAD_REQUEST');
    expect(code({ prompt: new Uint32Array(513).fill(5) })).to.equal('GPU_TOO_LONG');
    const three = [0, 1, 2].map((index) => ({ index, generated: new Uint32Array() }));
    expect(code({ choices: three })).to.equal('GPU_BAD_REQUEST');
    const verdict = receiver.engine.prefill({ ...base, key: 900_101 }, 0, 1000);
    expect(verdict.ok || verdict.code).to.equal('GPU_POOL_FULL');
  });

  it('carries logprobs of the token and of the alternatives, which sum to less than one', async () => {
    const seen: (readonly [number, readonly (readonly [number, number])[]])[] = [];
    const rig = await openRig(tinyModelFile(), { slots: 1, sequenceTokens: 256 });
    await rig.engine.stop();
    const engine = await createLlamaEngine({
      model: 'm',
      path: tinyModelFile(),
      sourceHash: 's',
      format: 'f',
      slots: 1,
    });
    await new Promise<void>((done, reject) => {
      engine.start({
        step: ({ tokens }) => {
          for (const { logprobs, finish } of tokens) {
            if (logprobs !== undefined) seen.push(logprobs);
            if (finish !== 0) done();
          }
        },
        died: (error) => reject(new Error(error.message)),
      });
      engine.generate({
        key: 1,
        prompt: prompt(4, 10, engine.card.vocabTokens),
        choices: [{ index: 0, generated: new Uint32Array() }],
        sampling: greedy,
        maxTokens: 5,
        minTokens: 0,
        ignoreEos: true,
        logprobs: 3,
        cacheSalt: '',
      });
    });
    await engine.stop();
    expect(seen).to.have.length(5);
    for (const [own, top] of seen) {
      expect(top).to.have.length(3);
      expect(own).to.be.closeTo(top[0]?.[1] as number, 1e-5); // greedy takes the likeliest
      expect(top.reduce((sum, [, logprob]) => sum + Math.exp(logprob), 0)).to.be.lessThan(1.0001);
    }
  });

  it('refuses a missing, a truncated and a foreign model file by name', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'dynact-model-'));
    const cut = join(folder, 'cut.gguf');
    copyFileSync(tinyModelFile(), cut);
    truncateSync(cut, Math.floor(statSync(cut).size / 2));
    const foreign = join(folder, 'foreign.gguf');
    writeFileSync(foreign, 'this is no model');
    for (const path of [join(folder, 'none.gguf'), cut, foreign]) {
      const error = await createLlamaEngine({ model: 'm', path, sourceHash: 's', format: 'f' }).then(
        () => undefined,
        (cause: unknown) => cause,
      );
      expect(error).to.be.instanceOf(Error).with.property('message').that.contains(path);
    }
    expect(() => openVocabulary({ model: 'm', path: foreign })).to.throw(foreign);
    rmSync(folder, { recursive: true });
  });

  it('stops with work in flight, and answers GPU_STOPPED afterwards', async () => {
    const rig = await openRig(tinyModelFile(), { slots: 2, sequenceTokens: 512 });
    void rig.generate(prompt(5, 300, rig.engine.card.vocabTokens), greedy, { maxTokens: 200 });
    void rig.generate(prompt(6, 300, rig.engine.card.vocabTokens), greedy, { maxTokens: 200 });
    await rig.engine.stop();
    await rig.engine.stop();
    const { failed } = await rig.generate(prompt(7, 3, rig.engine.card.vocabTokens), greedy);
    expect(failed?.code).to.equal('GPU_STOPPED');
  });
});
