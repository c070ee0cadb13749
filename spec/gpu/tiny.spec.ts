import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import {
  createLlamaEngine,
  type EngineRequest,
  type EngineStep,
  openVocabulary,
  tinyModel,
  writeTinyModel,
} from '../../gpu/index.js';

describe('tiny model', () => {
  const folder = mkdtempSync(join(tmpdir(), 'dynact-tiny-'));
  const path = join(folder, 'tiny.gguf');
  before(() => writeTinyModel(path));
  after(() => rmSync(folder, { recursive: true }));

  it('is the same for the same seed, another for another seed, and below 2 MB', () => {
    expect(tinyModel({ seed: 3 }).equals(tinyModel({ seed: 3 }))).to.equal(true);
    expect(tinyModel({ seed: 3 }).equals(tinyModel({ seed: 4 }))).to.equal(false);
    expect(statSync(path).size).to.be.below(2_000_000);
  });

  it('refuses sizes that cannot be', () => {
    expect(() => tinyModel({ layers: 0 })).to.throw(RangeError, 'layers');
    expect(() => tinyModel({ heads: 3, kvHeads: 2 })).to.throw(RangeError, 'kvHeads');
  });

  it('has a vocabulary of bytes and ChatML control tokens that reads back any text', () => {
    const vocabulary = openVocabulary({ model: 'tiny', path });
    const text = 'the cat, der Käse, 猫 🐈\n';
    const tokens = vocabulary.tokenize(text, { special: false, addBos: false });
    expect(Buffer.concat(Array.from(tokens, (token) => vocabulary.piece(token))).toString()).to.equal(text);
    expect([...vocabulary.tokenize('<|im_start|>', { special: true, addBos: false })]).to.deep.equal([1]);
    expect(vocabulary.endTokens.has(2)).to.equal(true);
    expect(vocabulary.chatTemplate).to.contain('<|im_start|>');
    expect(vocabulary.contextTokens).to.equal(2048);
  });

  it('runs in the real engine, where different prompts get different answers and equal ones the same', async () => {
    const engine = await createLlamaEngine({
      model: 'tiny',
      path,
      sourceHash: 'f'.repeat(64),
      format: 'source',
      slots: 4,
    });
    const said = new Map<number, number[]>();
    const request = (key: number, prompt: number[]): EngineRequest => ({
      key,
      prompt: Uint32Array.from(prompt),
      choices: [{ index: 0, generated: new Uint32Array(0) }],
      sampling: {
        temperature: 0,
        topK: 0,
        topP: 1,
        minP: 0,
        frequencyPenalty: 0,
        presencePenalty: 0,
        repetitionPenalty: 1,
        logitBias: [],
        seed: 1,
      },
      maxTokens: 24,
      minTokens: 24,
      ignoreEos: true,
      logprobs: 0,
      cacheSalt: '',
    });
    try {
      await new Promise<void>((resolve, reject) => {
        let open = 3;
        engine.start({
          step(step: EngineStep) {
            for (const failed of step.failed) reject(new Error(failed.message));
            for (const { key, token, finish } of step.tokens) {
              said.set(key, [...(said.get(key) ?? []), token]);
              if (finish !== 0) open -= 1;
            }
            if (open === 0) resolve();
          },
          died: (error) => reject(new Error(error.message)),
        });
        const prompt = Array.from({ length: 200 }, (_, i) => 3 + ((i * 37) % 256));
        expect(engine.generate(request(1, prompt))).to.deep.equal({ ok: true });
        expect(engine.generate(request(2, prompt))).to.deep.equal({ ok: true });
        expect(engine.generate(request(3, prompt.toReversed()))).to.deep.equal({ ok: true });
      });
    } finally {
      await engine.stop();
    }
    expect(said.get(1)).to.have.length(24);
    expect(said.get(2)).to.deep.equal(said.get(1));
    expect(said.get(3)).to.not.deep.equal(said.get(1));
    expect(new Set(said.get(1)).size, 'one token over and over would compare equal for the wrong reason').to.be.above(
      3,
    );
  });
});
