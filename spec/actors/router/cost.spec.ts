import { expect } from 'chai';
import fc from 'fast-check';
import { type CostConfig, costConfig, costOf, defaultCost, probabilities } from '../../../actors/router/cost.js';
import {
  decide,
  explained,
  type SelectionCandidate,
  type SelectionMode,
  selectionModes,
  type Wishes,
} from '../../../actors/router/select.js';

const idle = { prefillTokens: 0, decodeBlocks: 0, requests: 0 };
const nothing = { device: 0, host: 0, disk: 0 };
const worker = (incarnation: string, over: Partial<SelectionCandidate> = {}): SelectionCandidate => ({
  incarnation,
  rank: 0,
  overlap: nothing,
  load: idle,
  capacity: 8,
  taints: [],
  ...over,
});
const wishes = (over: Partial<Wishes> = {}): Wishes => ({
  blockTokens: 16,
  promptTokens: 160,
  phase: 'prefill',
  ...over,
});
const chance = (draw = 0, turn = 0) => ({ draw, turn });

interface Vector {
  readonly name: string;
  readonly blockTokens?: number;
  readonly promptTokens?: number;
  readonly phase?: 'prefill' | 'decode';
  readonly overlap?: Partial<typeof nothing & { external: number; shared: number }>;
  readonly prefillTokens?: number | undefined;
  readonly decodeBlocks?: number;
  readonly requests?: number;
  readonly config?: Partial<CostConfig>;
  readonly cost: number;
  readonly cachedTokens?: number;
  readonly credit?: number;
  readonly prefillBlocks?: number;
}

/** Dynamo's formula, worked out by hand; the first nine are its golden vectors. */
const vectors: readonly Vector[] = [
  {
    name: 'device 2, decode 10',
    overlap: { device: 2 },
    decodeBlocks: 10,
    cachedTokens: 32,
    prefillBlocks: 10,
    credit: 2,
    cost: 18,
  },
  {
    name: 'device 5, decode 5',
    overlap: { device: 5 },
    decodeBlocks: 5,
    cachedTokens: 80,
    prefillBlocks: 10,
    credit: 5,
    cost: 10,
  },
  {
    name: 'device 8, decode 9',
    overlap: { device: 8 },
    decodeBlocks: 9,
    cachedTokens: 128,
    prefillBlocks: 10,
    credit: 8,
    cost: 11,
  },
  {
    name: 'a backlog',
    overlap: { device: 5 },
    prefillTokens: 320,
    decodeBlocks: 7,
    cachedTokens: 80,
    prefillBlocks: 30,
    credit: 5,
    cost: 32,
  },
  { name: 'host blocks', overlap: { device: 2, host: 4 }, decodeBlocks: 3, cachedTokens: 80, credit: 5, cost: 8 },
  {
    name: 'host and disk blocks',
    overlap: { device: 2, host: 4, disk: 4 },
    decodeBlocks: 3,
    cachedTokens: 96,
    credit: 6,
    cost: 7,
  },
  {
    name: 'decaying credit',
    overlap: { device: 6 },
    prefillTokens: 320,
    config: { overlapScoreCreditDecay: 1 },
    cachedTokens: 96,
    prefillBlocks: 30,
    credit: 2,
    cost: 28,
  },
  { name: 'the same without decay', overlap: { device: 6 }, prefillTokens: 320, cost: 24 },
  {
    name: 'blocks of 64',
    blockTokens: 64,
    promptTokens: 1000,
    overlap: { device: 15 },
    decodeBlocks: 16,
    cachedTokens: 960,
    prefillBlocks: 15.625,
    credit: 15,
    cost: 16.625,
  },
  {
    name: 'decode without prefill',
    phase: 'decode',
    decodeBlocks: 7,
    config: { trackPrefillTokens: false, overlapScoreCredit: 0 },
    prefillBlocks: 0,
    cost: 7,
  },
  {
    name: 'decode that may prefill',
    phase: 'decode',
    overlap: { device: 3 },
    decodeBlocks: 7,
    config: { trackPrefillTokens: false },
    cost: 4,
  },
  { name: 'a worker nothing is known of', prefillTokens: undefined, cost: 10 },
  { name: 'external blocks count as disk', overlap: { disk: 2, external: 2 }, cachedTokens: 16, credit: 1, cost: 9 },
  {
    name: 'a shared cache',
    overlap: { device: 2, shared: 4 },
    config: { sharedCacheMultiplier: 0.5 },
    credit: 4,
    cost: 6,
  },
  { name: 'running requests', requests: 3, config: { decodeActiveRequestWeight: 2 }, cost: 16 },
  {
    name: 'prefill that weighs half',
    overlap: { device: 2 },
    decodeBlocks: 1,
    config: { prefillLoadScale: 0.5 },
    cost: 5,
  },
];

describe('the cost of a worker', () => {
  for (const { name, cost, cachedTokens, credit, prefillBlocks, ...given } of vectors) {
    it(`equals Dynamo's for ${name}`, () => {
      const {
        blockTokens = 16,
        promptTokens = 160,
        phase = 'prefill',
        overlap,
        decodeBlocks = 0,
        requests = 0,
        config,
      } = given;
      const load = { prefillTokens: 'prefillTokens' in given ? given.prefillTokens : 0, decodeBlocks, requests };
      const terms = costOf(
        { blockTokens, promptTokens, phase },
        { ...nothing, ...overlap },
        load,
        [],
        0,
        costConfig(config),
      );
      expect(terms.cost).to.be.closeTo(cost, 1e-9);
      if (cachedTokens !== undefined) expect(terms.cachedTokens).to.equal(cachedTokens);
      if (credit !== undefined) expect(terms.credit).to.be.closeTo(credit, 1e-9);
      if (prefillBlocks !== undefined) expect(terms.prefillBlocks).to.be.closeTo(prefillBlocks, 1e-9);
    });
  }

  it('becomes a third at most for preferred taints and 2.72 times as much at most for unwanted ones', () => {
    const job = {
      blockTokens: 16,
      promptTokens: 160,
      phase: 'prefill',
      preferredTaints: { near: 100, far: -100, some: 1 },
    } as const;
    const cost = (taints: string[]) => costOf(job, nothing, idle, taints, 0, defaultCost).cost;
    expect(cost(['near'])).to.be.closeTo(10 / Math.E, 1e-9);
    expect(cost(['far'])).to.be.closeTo(10 * Math.E, 1e-9);
    expect(cost(['some', 'unknown'])).to.be.closeTo(10 * Math.exp(-Math.tanh(1)), 1e-9);
    expect(cost([])).to.equal(10);
  });

  it('turns into probabilities by the softmax of scaled costs', () => {
    const at = probabilities([18, 10, 11], 0.5);
    expect(at.map((p) => p.toFixed(4))).to.deep.equal(['0.0707', '0.5224', '0.4069']);
    expect(probabilities([3, 1, 1, 2], 0)).to.deep.equal([0, 0.5, 0.5, 0]);
    expect(probabilities([4, 4], 0.7)).to.deep.equal([0.5, 0.5]);
  });

  it('has parameters with names and bounds', () => {
    expect(costConfig()).to.deep.equal(defaultCost);
    expect(costConfig({ routerTemperature: 0.5 }, costConfig({ prefillLoadScale: 2 }))).to.include({
      routerTemperature: 0.5,
      prefillLoadScale: 2,
    });
    for (const bad of [-1, Number.NaN, Number.POSITIVE_INFINITY]) {
      expect(() => costConfig({ hostCacheHitWeight: bad })).to.throw(RangeError, 'hostCacheHitWeight');
    }
    expect(() => costConfig({ trackPrefillTokens: 1 as unknown as boolean })).to.throw(
      RangeError,
      'trackPrefillTokens',
    );
  });
});

describe('the selection of a worker', () => {
  it('in mode kv takes the cheapest, and says what it compared', () => {
    const three = [
      worker('a', { overlap: { device: 2, host: 0, disk: 0 }, load: { ...idle, decodeBlocks: 10 } }),
      worker('b', { overlap: { device: 5, host: 0, disk: 0 }, load: { ...idle, decodeBlocks: 5 } }),
      worker('c', { overlap: { device: 8, host: 0, disk: 0 }, load: { ...idle, decodeBlocks: 9 } }),
    ];
    const decision = decide('kv', wishes(), three, defaultCost, chance(0.99));
    expect(decision.chosen).to.equal(1);
    const { candidates } = explained(decision);
    expect(candidates.map(({ terms }) => terms?.cost)).to.deep.equal([18, 10, 11]);
    expect(candidates[1]).to.include({ incarnation: 'b', rank: 0, probability: 1 });
  });

  it('breaks ties evenly, and at a temperature draws as the probabilities say', () => {
    const same = ['a', 'b', 'c', 'd'].map((name) => worker(name));
    const draws = 10_000;
    const counts = (temperature: number, workers: SelectionCandidate[]) => {
      const seen = workers.map(() => 0);
      for (let n = 0; n < draws; n++) {
        const { chosen } = decide(
          'kv',
          wishes(),
          workers,
          costConfig({ routerTemperature: temperature }),
          chance((n + 0.5) / draws),
        );
        (seen[chosen as number] as number)++;
      }
      return seen;
    };
    expect(counts(0, same)).to.deep.equal([2500, 2500, 2500, 2500]);
    const costs = [18, 10, 11].map((blocks, n) => worker(`w${n}`, { load: { ...idle, decodeBlocks: blocks } }));
    const drawn = counts(0.5, costs);
    for (const [n, expected] of [707, 5224, 4069].entries()) expect(drawn[n]).to.be.closeTo(expected, 5);
  });

  it('goes by turns, by chance, by the better of two and by load in the simple modes', () => {
    const loads = [4, 1, 1, 9].map((requests, n) => worker(`w${n}`, { load: { ...idle, requests } }));
    const choose = (mode: SelectionMode, draw: number, turn = 0) =>
      decide(mode, wishes(), loads, defaultCost, chance(draw, turn)).chosen;
    expect([0, 1, 2, 3, 4, 5].map((turn) => choose('round-robin', 0, turn))).to.deep.equal([0, 1, 2, 3, 0, 1]);
    expect([0, 0.25, 0.5, 0.999].map((draw) => choose('random', draw))).to.deep.equal([0, 1, 2, 3]);
    expect([0, 0.49, 0.5, 0.99].map((draw) => choose('least-loaded', draw))).to.deep.equal([1, 1, 2, 2]);
    const pairs = Array.from({ length: 12 }, (_, n) => choose('power-of-two', (n + 0.5) / 12));
    // Of the twelve ordered pairs of four, w3 loses all and w0 wins only against it.
    expect([0, 1, 2, 3].map((n) => pairs.filter((chosen) => chosen === n).length)).to.deep.equal([2, 5, 5, 0]);
    expect(decide('power-of-two', wishes(), [worker('only')], defaultCost, chance(0.7)).chosen).to.equal(0);
  });

  it('compares load as a share of what a worker can run', () => {
    const workers = [
      worker('small', { capacity: 2, load: { ...idle, requests: 1 } }),
      worker('large', { capacity: 16, load: { ...idle, requests: 4 } }),
    ];
    expect(decide('least-loaded', wishes(), workers, defaultCost, chance(0)).chosen).to.equal(1);
  });

  it('keeps to pins, ranks, allowed sets and required taints in every mode, and says why others are out', () => {
    const workers = [
      worker('a', { rank: 0, taints: ['zone/1'] }),
      worker('a', { rank: 1, taints: ['zone/1'] }),
      worker('b', { barred: 'inhibited' }),
      worker('c'),
    ];
    for (const mode of selectionModes) {
      const pinned = decide(
        mode,
        wishes({ pin: { worker: 'c', prefill: 'a', rank: 1 } }),
        workers,
        defaultCost,
        chance(0.9, 7),
      );
      expect(pinned.candidates.map(({ incarnation, rank }) => `${incarnation}/${rank}`)).to.deep.equal(['a/1']);
      expect(pinned.chosen).to.equal(0);
      const decode = decide(
        mode,
        wishes({ phase: 'decode', pin: { worker: 'c', prefill: 'a' } }),
        workers,
        defaultCost,
        chance(),
      );
      expect(decode.candidates[decode.chosen as number]?.incarnation).to.equal('c');
      const gone = decide(mode, wishes({ pin: { worker: 'z' } }), workers, defaultCost, chance());
      expect(gone).to.deep.include({ chosen: undefined, candidates: [] });
      expect(gone.excluded.map(({ reason }) => reason)).to.deep.equal([
        'not-pinned',
        'not-pinned',
        'not-pinned',
        'not-pinned',
      ]);
      if (mode === 'direct') continue;
      const allowed = decide(mode, wishes({ allowed: new Set(['b', 'c']) }), workers, defaultCost, chance());
      expect(allowed.excluded.map(({ reason }) => reason)).to.deep.equal(['not-allowed', 'not-allowed', 'inhibited']);
      const tainted = decide(mode, wishes({ requiredTaints: ['zone/1'] }), workers, defaultCost, chance());
      expect(tainted.candidates).to.have.length(2);
    }
  });

  it('in mode direct takes nothing that is not pinned', () => {
    expect(decide('direct', wishes(), [worker('a')], defaultCost, chance()).chosen).to.equal(undefined);
  });

  it('comes out the same whenever it is made again, and always among the eligible', () => {
    const candidate = fc.record({
      device: fc.nat(12),
      decodeBlocks: fc.nat(50),
      prefillTokens: fc.option(fc.nat(1000), { nil: undefined }),
      requests: fc.nat(8),
      barred: fc.option(fc.constantFrom('full' as const, 'tried' as const), { nil: undefined }),
    });
    fc.assert(
      fc.property(
        fc.array(candidate, { maxLength: 9 }),
        fc.constantFrom(...selectionModes),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        fc.nat(100),
        fc.constantFrom(0, 0.3, 5),
        (rows, mode, draw, turn, routerTemperature) => {
          const workers = rows.map(({ device, barred, ...load }, n) =>
            worker(`w${n}`, { overlap: { device, host: 0, disk: 0 }, load, ...(barred !== undefined && { barred }) }),
          );
          const make = () => decide(mode, wishes(), workers, costConfig({ routerTemperature }), chance(draw, turn));
          const decision = make();
          expect(make()).to.deep.equal(decision);
          const free = mode === 'direct' ? 0 : rows.filter(({ barred }) => barred === undefined).length;
          expect(decision.candidates).to.have.length(free);
          expect(decision.candidates.length + decision.excluded.length).to.equal(rows.length);
          if (free === 0) expect(decision.chosen).to.equal(undefined);
          else expect(decision.chosen).to.be.within(0, free - 1);
        },
      ),
    );
  });
});
