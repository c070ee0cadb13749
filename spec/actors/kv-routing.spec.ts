import { expect } from 'chai';
import type { SelectionMode } from '../../actors/index.js';
import { RouteLog, type RouteRecord } from '../../actors/router/route-log.js';
import type { Decision } from '../../actors/router/select.js';
import { serve } from '../../bench/routing/fleet.js';
import { hotPrefix, spread } from '../../bench/routing/spread.js';
import { createFleet, type Fleet, type FleetOptions, prepared, type Seen } from './fleet.js';

const blockTokens = 64;
/** Random enough that no two conversations share a block. */
const tokens = (seed: number, length: number) =>
  Uint32Array.from({ length }, (_, i) => (Math.imul(seed * 65_537 + i + 1, 2_654_435_761) >>> 8) % 50_000);

async function ask(fleet: Fleet, prompt: Uint32Array, maxTokens = 4) {
  const { seen } = fleet.submit({ ...prepared(), prompt, maxTokens });
  await fleet.run(60_000, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  // Reports and releases arrive.
  await fleet.run(5);
  const summary = fleet.summaries.at(-1);
  return { cached: seen.usage?.cachedTokens ?? 0, ...(summary as NonNullable<typeof summary>) };
}

/** Turns of conversations by turns: each prompt is that of the turn before and 130 tokens more. */
async function converse(fleet: Fleet, conversations: number, turns: number) {
  const computedBy = new Map<number, Set<string>>();
  let cached = 0;
  let repeated = 0;
  for (let turn = 0; turn < turns; turn++) {
    for (let id = 0; id < conversations; id++) {
      const length = 400 + turn * 130;
      const answer = await ask(fleet, tokens(id + 1, length));
      const by = computedBy.get(id) ?? new Set();
      computedBy.set(id, by.add(answer.prefill || answer.decode));
      cached += answer.cached;
      if (turn > 0) repeated += Math.floor((length - 130) / blockTokens) * blockTokens;
    }
  }
  return { computedBy: [...computedBy.values()], cached, repeated };
}

describe('routing by cached prefix', () => {
  for (const prefill of [3, 0]) {
    const flow = prefill > 0 ? 'prefill workers' : 'decode workers that compute their prompts';
    it(`keeps a conversation with the worker that has it, over ${flow}, and computes nothing twice`, async () => {
      const { computedBy, cached, repeated } = await converse(createFleet({ prefill, decode: 3 }), 6, 4);
      for (const workers of computedBy) expect(workers.size).to.equal(1);
      expect(cached).to.equal(repeated);
      // No conversation shares anything: all workers get some.
      expect(new Set(computedBy.flatMap((workers) => [...workers])).size).to.be.greaterThan(1);
    });

    it(`is what does it: by turns, conversations over ${flow} are computed again`, async () => {
      const options: FleetOptions & { mode: SelectionMode } = { prefill, decode: 3, mode: 'round-robin' };
      const { computedBy, cached, repeated } = await converse(createFleet(options), 4, 4);
      for (const workers of computedBy) expect(workers.size).to.be.greaterThan(1);
      expect(cached).to.be.lessThan(repeated / 2);
    });
  }

  it('believes its own dispatches before a worker reports, for as long as they are assumed', async () => {
    for (const [cacheReports, assumeMs, workers] of [
      [false, 60_000, 1],
      [true, 0, 1],
      [false, 0, 3],
    ] as const) {
      const fleet = createFleet({ prefill: 3, decode: 1, cacheReports, assumeMs });
      const by = new Set<string>();
      for (let turn = 0; turn < 12; turn++) by.add((await ask(fleet, tokens(1, 900))).prefill);
      expect(by.size, `reports ${cacheReports}, assumed for ${assumeMs} ms`).to.equal(workers);
    }
  });

  it('gives each of several idle workers its share of prompts that nobody has', async () => {
    const fleet = createFleet({ prefill: 4, decode: 4 });
    const by = new Map<string, number>();
    for (let i = 0; i < 60; i++) {
      const { prefill, decode } = await ask(fleet, tokens(1_000 + i, 70), 1);
      for (const worker of [prefill, decode]) by.set(worker, (by.get(worker) ?? 0) + 1);
    }
    expect(by.size).to.equal(8);
    for (const count of by.values()) expect(count).to.be.within(4, 30);
  });

  it('spreads a prefix that all requests share when many come at once, within the cap of each worker', async () => {
    const fleet = createFleet({ prefill: 4, decode: 4, engine: { slots: 4 } });
    const shared = tokens(1, 640);
    await ask(fleet, shared);
    const seen = Array.from({ length: 60 }, (_, i) => {
      const prompt = Uint32Array.from([...shared, ...tokens(50 + i, 100)]);
      return fleet.submit({ ...prepared(), prompt, maxTokens: 60 }).seen;
    });
    await fleet.run(60_000, () => seen.every(({ ends }) => ends > 0));
    const decodes = new Map<string, number>();
    for (const { decode } of fleet.summaries.slice(1)) decodes.set(decode, (decodes.get(decode) ?? 0) + 1);
    expect(decodes.size).to.equal(4);
    const counts = [...decodes.values()];
    expect(Math.max(...counts) - Math.min(...counts)).to.be.at.most(3);
    expect(seen.filter(({ error }) => error !== undefined)).to.deep.equal([]);
  });

  it('leaves conversations where they are, however many go on: a prompt on P is no load of blocks as well', async () => {
    const fleet = createFleet({ prefill: 4, decode: 1, engine: { speedup: 1, slots: 64 } });
    const turns = 5;
    const open = Array.from({ length: 16 }, (_, id) => ({ id, turn: 0, seen: undefined as Seen | undefined }));
    const length = (turn: number) => 500 + 640 * turn;
    let cached = 0;
    let repeated = 0;
    while (open.some(({ turn, seen }) => turn < turns || seen !== undefined)) {
      for (const each of open) {
        if (each.seen !== undefined && each.seen.ends > 0) {
          cached += each.seen.usage?.cachedTokens ?? 0;
          if (each.turn > 1) repeated += Math.floor(length(each.turn - 2) / blockTokens) * blockTokens;
          each.seen = undefined;
        }
        if (each.seen === undefined && each.turn < turns) {
          const prompt = tokens(each.id + 1, length(each.turn++));
          each.seen = fleet.submit({ ...prepared(), prompt, maxTokens: 2 }).seen;
        }
      }
      await fleet.run(1);
    }
    expect(cached / repeated).to.be.above(0.97);
    const [record] = await fleet.explain(fleet.summaries.at(-1)?.id ?? '');
    const [, p] = (record as RouteRecord).decisions as [Decision, Decision];
    expect(p.candidates.map(({ load }) => load.decodeBlocks)).to.deep.equal([0, 0, 0, 0]);
  });

  it('keeps all workers equally busy with a prefix that all requests share', async () => {
    const { busy } = await serve(
      { prefill: 4, decode: 2, engine: { speedup: 1, slots: 64 } },
      hotPrefix({ requests: 400, perSecond: 60, sharedTokens: 640 }),
    );
    expect(busy.size).to.equal(4);
    expect(spread(busy)).to.be.below(0.2);
  });

  it('forgets a worker that is gone, and its KV with it', async () => {
    const fleet = createFleet({ prefill: 2, decode: 1 });
    const first = await ask(fleet, tokens(1, 640));
    fleet.killWorker(first.prefill);
    const second = await ask(fleet, tokens(1, 640));
    expect(second.prefill).to.not.equal(first.prefill);
    const [record] = await fleet.explain(second.id);
    expect(record?.expectedTokens).to.equal(0);
    expect((await fleet.routerFacts()).index?.nodes).to.equal(10);
  });
});

describe('the reasons of the router', () => {
  it('say for a request who was compared, who was not and why, what was expected and what was there', async () => {
    const fleet = createFleet({ prefill: 2, decode: 2 });
    const first = await ask(fleet, tokens(1, 640));
    fleet.freeze(first.prefill === 'prefill-0-a' ? 'prefill-1-a' : 'prefill-0-a');
    await fleet.run(3_000);
    const { id, prefill, decode, cached } = await ask(fleet, tokens(1, 700));
    const [record, ...more] = await fleet.explain(id);
    expect(more).to.deep.equal([]);
    expect(record).to.deep.include({ id, attempt: 1, placed: { prefill, decode }, expectedTokens: 640 });
    expect(record?.cachedTokens).to.equal(640).and.to.equal(cached);
    const [d, p] = (record as RouteRecord).decisions as [Decision, Decision];
    expect([d.phase, p.phase]).to.deep.equal(['decode', 'prefill']);
    expect(d.candidates.map(({ incarnation }) => incarnation)).to.deep.equal(['decode-0-a', 'decode-1-a']);
    expect(p.candidates).to.have.length(1);
    expect(p.candidates[0]).to.deep.include({ incarnation: prefill, overlap: { device: 10, host: 0, disk: 0 } });
    expect(p.excluded.map(({ reason }) => reason)).to.deep.equal(['suspect']);
    expect(await fleet.explain('unknown')).to.deep.equal([]);
  });

  it('count what a cache lacked, and say so once per worker', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { cacheBlocks: 0 } });
    for (let i = 0; i < 3; i++) await ask(fleet, tokens(1, 641));
    const { hits } = await fleet.routerFacts();
    expect(hits).to.deep.equal({ prompt: 3 * 641, expected: 2 * 640, cached: 0, missed: 2 * 640, unforeseen: 0 });
    expect(fleet.world.logged.filter(({ message }) => message.startsWith('a cache lacks'))).to.have.length(1);
  });

  it('are kept for the last thousand decisions, or fewer if they compared many workers', () => {
    const decision = { candidates: Array(100).fill({}), excluded: [] } as unknown as Decision;
    const record = (id: number, decisions: readonly Decision[]): RouteRecord => ({
      id: String(id),
      attempt: 1,
      at: 0,
      decisions,
      placed: undefined,
      expectedTokens: 0,
    });
    for (const [decisions, kept] of [
      [[], 1_024],
      [[decision], 655],
    ] as const) {
      const log = new RouteLog();
      for (let id = 0; id < 2_000; id++) log.add(record(id, decisions));
      expect(log.size).to.equal(kept);
      expect(log.find(String(1_999 - kept))).to.deep.equal([]);
      expect(log.find(String(2_000 - kept))).to.have.length(1);
      log.add({ ...record(1_999, decisions), attempt: 2 });
      expect(log.find('1999').map(({ attempt }) => attempt)).to.deep.equal([1, 2]);
    }
  });
});
