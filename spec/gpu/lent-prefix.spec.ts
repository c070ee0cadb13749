import { expect } from 'chai';
import type { LentPrefix } from '../../transport/index.js';
import { greedy, openRig, prompt, type Rig, seeded, tinyModelFile } from './llama-rig.js';

/** D lends what its cache has of a prompt, P copies that and computes the rest. */
describe('A prefix that the receiver lends to the sender', () => {
  const limits = { sequenceTokens: 512, slots: 2, exportBlocks: 32 };
  let alone: Rig;
  let rigs: Rig[] = [];
  const rig = async (owner: string, more = {}) => {
    const opened = await openRig(tinyModelFile(), { ...limits, owner, ...more });
    rigs.push(opened);
    return opened;
  };
  const input = (i: number, length = 300) => prompt(i, length, alone.engine.card.vocabTokens);
  /** A receiver that has the first four blocks, and a sender that has nothing. */
  async function pair(i: number) {
    const [lender, borrower] = [await rig(`lender-${i}`), await rig(`borrower-${i}`)];
    await lender.generate(input(i).subarray(0, 257), greedy);
    return { lender, borrower };
  }
  const settled = () => rigs.map(({ engine }) => ({ ...engine.load(), cachedBlocks: 0, steps: 0, progress: 0 }));

  before(async () => {
    alone = await openRig(tinyModelFile(), { sequenceTokens: 512, slots: 1, cacheBytes: 0 });
  });
  afterEach(async () => {
    const idle = {
      busySlots: 0,
      waiting: 0,
      usedKvBlocks: 0,
      cachedBlocks: 0,
      exportedBlocks: 0,
      steps: 0,
      progress: 0,
    };
    for (const load of settled()) expect(load).to.deep.equal(idle);
    await Promise.all(rigs.map(({ engine }) => engine.stop()));
    rigs = [];
  });
  after(() => alone.engine.stop());

  it('is computed no second time, and gives the same tokens, greedy and seeded', async () => {
    for (const [i, sampling] of [greedy, seeded, { ...seeded, seed: 9 }].entries()) {
      const { lender, borrower } = await pair(i);
      const { tokens, cached, failed } = await lender.receive(borrower, input(i), sampling, { lend: (same) => same });
      expect(failed).to.equal(undefined);
      expect(tokens).to.deep.equal((await alone.generate(input(i), sampling)).tokens);
      expect(cached).to.equal(4 * 64);
      // It stays: the next prompt finds it there.
      expect((await borrower.generate(input(i), greedy)).cached).to.equal(4 * 64);
    }
  });

  it('is copied only as far as it is missing', async () => {
    const { lender, borrower } = await pair(5);
    await borrower.generate(input(5).subarray(0, 129), greedy);
    const { tokens, cached } = await lender.receive(borrower, input(5), greedy, { lend: (same) => same });
    expect(tokens).to.deep.equal((await alone.generate(input(5), greedy)).tokens);
    expect(cached).to.equal(4 * 64);
  });

  const first = (prefix: LentPrefix, change: object): LentPrefix => ({
    ...prefix,
    blocks: prefix.blocks.map((block, at) => (at === 0 ? { ...block, ...change } : block)),
  });
  for (const [what, lend] of [
    ['another checksum', (prefix) => first(prefix, { checksum: '00000000000000ff' })],
    ['another prompt', (prefix) => first(prefix, { hash: '00000000000000ff' })],
    ['a wrong size', (prefix) => first(prefix, { bytes: 64 })],
    ['a place outside the pool', (prefix) => first(prefix, { offset: prefix.pool.bytes - 8 })],
    ['a hole', (prefix) => ({ ...prefix, blocks: prefix.blocks.slice(1) })],
    ['another model', (prefix) => ({ ...prefix, fingerprint: 'other' })],
    ['another layout', (prefix) => ({ ...prefix, layout: 'other' })],
    ['an owner that is gone', (prefix) => ({ ...prefix, pool: { ...prefix.pool, fd: 9_999 } })],
    ['a pool of an older epoch', (prefix) => ({ ...prefix, pool: { ...prefix.pool, epoch: 7 } })],
    ['no blocks', (prefix) => ({ ...prefix, blocks: [] })],
  ] as readonly (readonly [string, (prefix: LentPrefix) => LentPrefix])[]) {
    it(`is computed after all when its descriptor has ${what}`, async () => {
      const { lender, borrower } = await pair(6);
      const { tokens, cached, failed } = await lender.receive(borrower, input(6), greedy, { lend });
      expect(failed).to.equal(undefined);
      expect(tokens).to.deep.equal((await alone.generate(input(6), greedy)).tokens);
      expect(cached).to.equal(0);
    });
  }

  it('lends what the pool has room for, and the rest is computed', async () => {
    const lender = await rig('small', { exportBlocks: 2 });
    const borrower = await rig('other');
    await lender.generate(input(7).subarray(0, 257), greedy);
    const { tokens, cached } = await lender.receive(borrower, input(7), greedy, { lend: (same) => same });
    expect(tokens).to.deep.equal((await alone.generate(input(7), greedy)).tokens);
    expect(cached).to.equal(2 * 64);
  });

  it('is lent once for each grant, and by nobody who holds none', async () => {
    const lender = await rig('lender');
    expect(lender.engine.lend(77)).to.include({ ok: false, code: 'GPU_UNKNOWN_KEY' });
    const request = {
      key: 78,
      prompt: input(8),
      choices: [{ index: 0, generated: new Uint32Array() }],
      sampling: greedy,
      maxTokens: 2,
      minTokens: 0,
      ignoreEos: true,
      logprobs: 0,
      cacheSalt: '',
    };
    expect(lender.engine.reserve(request).ok).to.equal(true);
    expect(lender.engine.lend(78).ok).to.equal(true);
    expect(lender.engine.lend(78)).to.include({ ok: false, code: 'GPU_BAD_REQUEST' });
    lender.engine.cancel(78);
    expect(lender.engine.lend(78)).to.include({ ok: false, code: 'GPU_UNKNOWN_KEY' });
  });

  it('leaves nothing when the borrower is cancelled while it copies, a hundred times', async () => {
    const lender = await rig('lender');
    // Room for one of two prefixes: there is always something to copy.
    const borrower = await rig('borrower', { cacheBytes: 4 * 64 * 4_096 });
    const base = {
      choices: [{ index: 0, generated: new Uint32Array() }],
      sampling: greedy,
      maxTokens: 2,
      minTokens: 0,
      ignoreEos: true,
      logprobs: 0,
      cacheSalt: '',
    };
    const lent: LentPrefix[] = [];
    for (const i of [9, 10]) {
      await lender.generate(input(i).subarray(0, 257), greedy);
      await lender.receive(borrower, input(i), greedy, {
        lend(prefix) {
          lent.push(prefix);
          return prefix;
        },
      });
    }
    for (let key = 1_000_000; key < 1_000_100; key++) {
      const asked = { ...base, key, prompt: input(9 + (key % 2)) };
      const taken = borrower.engine.prefill(asked, 0, 10_000, lent[key % 2]);
      // Until the engine has looked at the cancelled ones its pool may be promised away.
      if (!taken.ok) expect(taken.code).to.equal('GPU_POOL_FULL');
      borrower.engine.cancel(key);
      if (key % 10 === 0) expect((await borrower.generate(input(11, 70), greedy)).failed).to.equal(undefined);
    }
    expect((await borrower.generate(input(11, 70), greedy)).failed).to.equal(undefined);
    const last = await borrower.prefill(input(12), greedy, 0);
    expect(last.failed).to.equal(undefined);
    borrower.engine.release(last.key);
    expect((await borrower.generate(input(11, 70), greedy)).failed).to.equal(undefined);
  });
});
