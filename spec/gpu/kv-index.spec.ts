import { expect } from 'chai';
import fc from 'fast-check';
import { createKvIndex, type KvIndex } from '../../gpu/index.js';
import type { KvOp, KvTier } from '../../transport/index.js';

const tiers: readonly KvTier[] = ['device', 'host', 'disk'];
const list = (...hashes: bigint[]): BigUint64Array => BigUint64Array.from(hashes);
const stored = (tier: KvTier, ...hashes: bigint[]): KvOp => ({ op: 'stored', tier, hashes: list(...hashes) });
const removed = (tier: KvTier, ...hashes: bigint[]): KvOp => ({ op: 'removed', tier, hashes: list(...hashes) });
const cleared: KvOp = { op: 'cleared' };

/** The plainest thing that can be right. */
class Model {
  readonly ranks = new Map<string, Map<bigint, Set<KvTier>>>();

  apply(incarnation: string, rank: number, ops: readonly KvOp[]): void {
    const key = `${incarnation}/${rank}`;
    for (const op of ops) {
      const held = this.ranks.get(key) ?? new Map<bigint, Set<KvTier>>();
      this.ranks.set(key, held);
      if (op.op === 'cleared') held.clear();
      else {
        for (const hash of op.hashes) {
          const on = held.get(hash) ?? new Set();
          if (op.op === 'stored') held.set(hash, on.add(op.tier));
          else if (on.delete(op.tier) && on.size === 0) held.delete(hash);
        }
      }
    }
  }

  forget(incarnation: string): void {
    for (const key of this.ranks.keys()) if (key.startsWith(`${incarnation}/`)) this.ranks.delete(key);
  }

  find(prompt: BigUint64Array): string[] {
    const rows: string[] = [];
    for (const [key, held] of this.ranks) {
      const run = (good: (on: Set<KvTier>) => boolean) => {
        const end = prompt.findIndex((hash) => !good(held.get(hash) ?? new Set()));
        return end < 0 ? prompt.length : end;
      };
      const ends = [
        run((on) => on.has('device')),
        run((on) => on.has('device') || on.has('host')),
        run((on) => on.size > 0),
      ];
      const [device, host, disk] = ends as [number, number, number];
      if (disk > 0) rows.push(`${key} ${device} ${host - device} ${disk - host}`);
    }
    return rows.sort();
  }

  count(tier: KvTier): number {
    let count = 0;
    for (const held of this.ranks.values()) for (const on of held.values()) if (on.has(tier)) count += 1;
    return count;
  }
}

const found = (index: KvIndex, prompt: BigUint64Array): string[] =>
  index
    .find(prompt)
    .map(({ incarnation, rank, device, host, disk }) => `${incarnation}/${rank} ${device} ${host} ${disk}`)
    .sort();

describe('the KV index', () => {
  it('finds for every worker how many leading blocks it holds, tier by tier, without a hole', () => {
    const index = createKvIndex();
    index.apply('a', 0, [stored('device', 1n, 2n), stored('host', 3n, 4n), stored('disk', 5n)]);
    index.apply('b', 0, [stored('device', 1n, 3n)]);
    index.apply('c', 1, [stored('device', 2n, 3n)]);
    expect(found(index, list(1n, 2n, 3n, 4n, 5n, 6n))).to.deep.equal(['a/0 2 2 1', 'b/0 1 0 0']);
  });

  it('counts a block behind a hole once the hole is filled, so a parent may arrive after its children', () => {
    const index = createKvIndex();
    index.apply('a', 0, [stored('device', 3n), stored('device', 2n)]);
    expect(found(index, list(1n, 2n, 3n))).to.deep.equal([]);
    index.apply('a', 0, [stored('device', 1n)]);
    expect(found(index, list(1n, 2n, 3n))).to.deep.equal(['a/0 3 0 0']);
  });

  it('keeps hashes of 64 bits apart that a JavaScript number would make one', () => {
    const index = createKvIndex();
    const big = 2n ** 53n;
    index.apply('a', 0, [stored('device', big, 0n, 2n ** 64n - 1n)]);
    expect(found(index, list(big))).to.deep.equal(['a/0 1 0 0']);
    expect(found(index, list(big + 1n))).to.deep.equal([]);
    expect(found(index, list(0n, 2n ** 64n - 1n))).to.deep.equal(['a/0 2 0 0']);
  });

  it('counts repeats and removals of what was not there, and neither changes an answer', () => {
    const index = createKvIndex();
    index.apply('a', 0, [stored('device', 1n), stored('device', 1n), removed('device', 9n), removed('host', 1n)]);
    expect(found(index, list(1n))).to.deep.equal(['a/0 1 0 0']);
    expect(index.stats()).to.include({ repeated: 1, unknown: 2, nodes: 1, holders: 1 });
  });

  it('never answers with what a worker held before it was cleared, replaced or forgotten', () => {
    const index = createKvIndex();
    index.apply('a', 0, [stored('device', 1n, 2n)]);
    index.apply('a', 1, [stored('device', 1n)]);
    index.apply('a', 0, [cleared, stored('device', 1n)]);
    expect(found(index, list(1n, 2n))).to.deep.equal(['a/0 1 0 0', 'a/1 1 0 0']);
    index.forget('a', 1);
    expect(found(index, list(1n, 2n))).to.deep.equal(['a/0 1 0 0']);
    index.forget('a');
    index.apply('a-again', 0, [stored('host', 2n)]);
    expect(found(index, list(1n, 2n))).to.deep.equal([]);
    expect(index.blocks('a', 0, 'device')).to.equal(0);
  });

  it('gives the answers of a plain model after any sequence of reports', () => {
    const hash = fc.bigInt({ min: 0n, max: 11n }).map((n) => n * 0x1_0000_0001n);
    const hashes = fc.array(hash, { maxLength: 8 });
    const change = fc.record({
      worker: fc.constantFrom('a', 'b', 'c'),
      rank: fc.constantFrom(0, 1),
      op: fc.constantFrom('stored', 'stored', 'stored', 'removed', 'removed', 'cleared', 'forget'),
      tier: fc.constantFrom(...tiers),
      hashes,
    });
    fc.assert(
      fc.property(
        fc.array(change, { maxLength: 60 }),
        fc.array(hashes, { minLength: 1, maxLength: 4 }),
        (steps, prompts) => {
          const index = createKvIndex();
          const model = new Model();
          for (const { worker, rank, op, tier, hashes: given } of steps) {
            if (op === 'forget') {
              index.forget(worker);
              model.forget(worker);
              continue;
            }
            const ops: KvOp[] = [op === 'cleared' ? cleared : { op: op as 'stored', tier, hashes: list(...given) }];
            index.apply(worker, rank, ops);
            model.apply(worker, rank, ops);
          }
          for (const prompt of prompts)
            expect(found(index, list(...prompt))).to.deep.equal(model.find(list(...prompt)));
          for (const tier of tiers) {
            let count = 0;
            for (const worker of ['a', 'b', 'c']) for (const rank of [0, 1]) count += index.blocks(worker, rank, tier);
            expect(count).to.equal(model.count(tier));
          }
        },
      ),
      { numRuns: 300 },
    );
  });

  /** Thousands of blocks in the same places of the table, so that it grows, shrinks, spills and closes holes all the time. */
  function churn(index: KvIndex, check: (model: Model, prompt: BigUint64Array) => void, rounds: number): Model {
    const model = new Model();
    let state = 0x2545_f491;
    const next = (below: number) => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    // 40 conversations of up to 200 blocks, of which the first 20 are common to all.
    const block = (conversation: number, n: number) =>
      BigInt(n < 20 ? n : conversation * 1000 + n) * 0x9e37_79b9_7f4a_7c15n;
    const prompt = (conversation: number, length: number) =>
      BigUint64Array.from({ length }, (_, n) => BigInt.asUintN(64, block(conversation, n)));
    for (let round = 0; round < rounds; round++) {
      const worker = `w${next(12)}`;
      const blocks = prompt(next(40), 1 + next(200));
      const from = next(blocks.length);
      const kind = next(100);
      const ops: KvOp[] =
        kind < 1
          ? [cleared]
          : [
              {
                op: kind < 60 ? 'stored' : 'removed',
                tier: tiers[next(3)] as KvTier,
                hashes: blocks.slice(kind < 30 ? 0 : from),
              },
            ];
      index.apply(worker, 0, ops);
      model.apply(worker, 0, ops);
      if (kind === 99) {
        const gone = `w${next(12)}`;
        index.forget(gone);
        model.forget(gone);
      }
      if (round % 16 === 0) check(model, prompt(next(40), 200));
    }
    return model;
  }

  it('stays exact while its table grows, shrinks and moves', () => {
    const index = createKvIndex();
    const model = churn(index, (now, prompt) => expect(found(index, prompt)).to.deep.equal(now.find(prompt)), 6_000);
    expect(index.stats().evicted).to.equal(0);
    for (const key of model.ranks.keys()) index.forget(key.split('/')[0] as string);
    // What the gone workers held is swept by the work of others, a little at each store.
    for (let i = 0; i < 4_000; i++) index.apply('last', 0, [stored('device', 1n)]);
    expect(index.stats()).to.include({ nodes: 1, holders: 1 });
    expect(index.stats().bytes).to.be.below(256 * 1024);
  }).timeout(60_000);

  it('stays within its bytes by forgetting, and even then never names a block that is not there', () => {
    const maxBytes = 96 * 1024;
    const index = createKvIndex({ maxBytes });
    let hits = 0;
    churn(
      index,
      (model, prompt) => {
        const truth = new Map(
          model
            .find(prompt)
            .map((row) => row.split(' '))
            .map(([key, ...n]) => [key, n.map(Number)]),
        );
        for (const { incarnation, rank, device, host, disk } of index.find(prompt)) {
          const [d, h, k] = truth.get(`${incarnation}/${rank}`) as [number, number, number];
          expect(device).to.be.at.most(d);
          expect(device + host).to.be.at.most(d + h);
          expect(device + host + disk).to.be.at.most(d + h + k);
          hits += device + host + disk;
        }
        expect(index.stats().bytes).to.be.at.most(maxBytes + 16 * 1024);
      },
      6_000,
    );
    const { evicted, refused } = index.stats();
    expect(evicted + refused).to.be.above(0);
    expect(hits).to.be.above(0);
  }).timeout(60_000);

  it('evicts what nobody has asked for or stored of late, and keeps what is asked for', () => {
    const index = createKvIndex({ maxBytes: 64 * 1024 });
    const hot = list(...Array.from({ length: 16 }, (_, n) => BigInt(n) << 40n));
    index.apply('a', 0, [{ op: 'stored', tier: 'device', hashes: hot }]);
    for (let n = 1; n < 20_000; n++) {
      index.apply('a', 0, [stored('device', BigInt(n) * 7_777_777n + 1n)]);
      index.find(hot);
    }
    expect(index.stats().evicted).to.be.above(10_000);
    expect(found(index, hot)).to.deep.equal(['a/0 16 0 0']);
  });

  it('assumes a block for its time, rounded up to 100 ms, and anew when it is assumed again', () => {
    const index = createKvIndex();
    index.assume('a', 0, list(1n, 2n), 1_000, 120_000);
    index.assume('b', 0, list(1n), 1_000, 5_050);
    const at = (ms: number) =>
      index.find(list(1n, 2n), ms).map(({ incarnation, device }) => `${incarnation} ${device}`);
    expect(at(6_049).sort()).to.deep.equal(['a 2', 'b 1']);
    expect(at(6_100)).to.deep.equal(['a 2']);
    index.assume('a', 0, list(1n), 100_000, 120_000);
    expect(at(121_000)).to.deep.equal(['a 1']);
    expect(at(220_000)).to.deep.equal([]);
    // What is over is swept by later work.
    for (let i = 0; i < 4_000; i++) index.assume('c', 0, list(9n), 300_000, 1_000);
    expect(index.stats()).to.include({ nodes: 1, holders: 1 });
  });

  it('refuses more worker ranks than it can tell apart, and takes new ones again once old ones are gone', () => {
    const index = createKvIndex();
    for (let n = 0; n < 65_536; n++) index.apply(`w${n}`, 0, [stored('device', BigInt(n % 100))]);
    expect(() => index.apply('one-more', 0, [stored('device', 1n)])).to.throw(RangeError);
    expect(index.find(list(1n))).to.have.length(656);
    index.forget('w1');
    index.apply('one-more', 0, [stored('device', 7n)]);
    expect(index.find(list(1n))).to.have.length(655);
  });

  it('refuses a bound that is none, and hashes that are not 64-bit ones', () => {
    for (const maxBytes of [0, -1, 1.5, Number.NaN, 1000])
      expect(() => createKvIndex({ maxBytes })).to.throw(RangeError);
    const index = createKvIndex();
    const numbers = [1, 2] as unknown as BigUint64Array;
    expect(() => index.apply('a', 0, [{ op: 'stored', tier: 'device', hashes: numbers }])).to.throw(TypeError);
    expect(() => index.find(numbers)).to.throw(TypeError);
  });
});
