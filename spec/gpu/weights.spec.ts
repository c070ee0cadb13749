import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { convertTo, formatsFor, prepareWeights, WeightsError, writeTinyModel } from '../../gpu/index.js';

async function refusal(work: Promise<unknown>): Promise<string> {
  try {
    await work;
  } catch (error) {
    if (error instanceof WeightsError) return error.code;
    throw error;
  }
  return 'none';
}

describe('weights', () => {
  let folder: string;
  let source: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-weights-'));
    source = join(folder, 'tiny.gguf');
    writeTinyModel(source);
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  it('are converted once, with a card that says what they are and how good, and found after that', async () => {
    const first = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' });
    expect(first).to.include({ cached: false, format: 'q8_0-pure' });
    expect(first.card.perplexity.result).to.be.below(1.05 * (first.card.perplexity.source ?? 0));
    const second = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' });
    expect(second).to.deep.equal({ ...first, cached: true });
    expect(readdirSync(join(folder, 'weights')).filter((name) => /part|lock/.test(name))).to.deep.equal([]);
  });

  it('are made again when the converted file was damaged', async () => {
    const first = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' });
    truncateSync(first.path, 1000);
    const second = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' });
    expect(second).to.deep.equal(first);
    expect(readFileSync(second.path).length).to.equal(second.card.bytes);
  });

  it('of a damaged source are refused with an error that says so', async () => {
    const bytes = readFileSync(source);
    for (const broken of [Buffer.alloc(0), Buffer.from('garbage'), bytes.subarray(0, 100), bytes.subarray(0, -1)]) {
      writeFileSync(source, broken);
      const code = await refusal(prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' }));
      expect(code, `${broken.length} bytes`).to.equal('GPU_WEIGHTS_UNUSABLE');
    }
    expect(await refusal(prepareWeights({ source: join(folder, 'none'), cacheDir: folder }))).to.equal(
      'GPU_WEIGHTS_MISSING',
    );
  });

  it('are not used when the process was told to stop, and leave nothing behind', async () => {
    const work = prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure', signal: AbortSignal.abort() });
    expect(await refusal(work)).to.equal('GPU_WEIGHTS_FAILED');
    expect(readdirSync(join(folder, 'weights')).filter((name) => /part|lock|gguf/.test(name))).to.deep.equal([]);
  });

  it('for a worker that joins are those of the card, from the same source only', async () => {
    const { card } = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure' });
    const joined = await convertTo(card, { source, cacheDir: join(folder, 'other') });
    expect(joined.sha256).to.equal(card.sha256);
    writeTinyModel(source, { seed: 2 });
    utimesSync(source, 1, 1);
    expect(await refusal(convertTo(card, { source, cacheDir: folder }))).to.equal('GPU_WEIGHTS_FOREIGN');
    expect(await refusal(convertTo({ ...card, format: 'q9' }, { source, cacheDir: folder }))).to.equal(
      'GPU_WEIGHTS_FOREIGN',
    );
  });

  it('take over the lock of a process that died', async () => {
    await prepareWeights({ source, cacheDir: folder, format: 'source' });
    const [card] = readdirSync(join(folder, 'weights')).filter((name) => name.endsWith('.source.json'));
    const lock = join(folder, 'weights', (card as string).replace('.source.json', '.q8_0-pure.lock'));
    writeFileSync(lock, '2147483646');
    const weights = await prepareWeights({ source, cacheDir: folder, format: 'q8_0-pure', deadlineMs: 30_000 });
    expect(weights.format).to.equal('q8_0-pure');
  });

  it('come in the format that the instruction set runs fastest', () => {
    expect(formatsFor('x64', new Set(['avx512f']))[0]).to.equal('iq4_nl-pure');
    expect(formatsFor('x64', new Set(['avx2']))[0]).to.equal('q4_0-pure');
    expect(formatsFor('arm64', new Set())[0]).to.equal('q4_0-pure');
    expect(formatsFor('riscv64', new Set())).to.deep.equal(['source']);
  });
});
