/** Several gateways over one fleet, in virtual time: their routers know of each other's dispatches. */
import { expect } from 'chai';
import { createFleet } from './fleet.js';

type Fleet = ReturnType<typeof createFleet>;

const prompt = (n: number, length = 200) => Uint32Array.from({ length }, (_, i) => (n * 131 + i * 7) % 50_000);

/** Requests that decode workers hold, in their order. */
function decoding(fleet: Fleet): number[] {
  const counts: number[] = [];
  for (const { engine, info } of fleet.workers.values()) {
    if (info.component !== 'decode') continue;
    const { busySlots, waiting } = engine.load();
    counts.push(busySlots + waiting);
  }
  return counts;
}

const spread = (counts: readonly number[]) => Math.max(...counts) / (counts.reduce((a, b) => a + b, 0) / counts.length);

describe('Several gateways', () => {
  for (const mode of ['kv', 'least-loaded'] as const) {
    for (const withinMs of [0, 100, 400]) {
      it(`spread 500 requests that come within ${withinMs} ms over eight workers, max / mean below 1.3, by ${mode}`, async () => {
        const engine = { slots: 128 };
        const fleet = createFleet({ prefill: 0, decode: 8, gateways: 4, mode, engine });
        await fleet.run(50);
        const sides = [...fleet.gateways.values()];
        for (let i = 0; i < 500; i++) {
          fleet.submit({ prompt: prompt(i), maxTokens: 4_000 }, sides[i % 4]?.frontend);
          if (withinMs > 0 && i % 5 === 4) await fleet.run(withinMs / 100);
        }
        await fleet.run(50);
        const counts = decoding(fleet);
        expect(counts.reduce((a, b) => a + b, 0)).to.equal(500);
        expect(spread(counts), counts.join(' ')).to.be.lessThan(1.3);
        for (const side of sides) {
          const { replicas } = await fleet.routerFacts(side);
          expect(replicas).to.include({ peers: 3, outOfStep: 0, requests: 375, gaps: 0, refused: 0 });
        }
      });
    }
  }

  it('never give a worker more than its slots, when they know of each other, and the last slots go to who came first', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, gateways: 2, engine: { slots: 4 }, mode: 'least-loaded' });
    await fleet.run(50);
    const [a, b] = [...fleet.gateways.values()];
    const all: ReturnType<Fleet['submit']>[] = [];
    for (let i = 0; i < 24; i++) {
      all.push(fleet.submit({ prompt: prompt(i) }, (i % 2 === 0 ? a : b)?.frontend));
      await fleet.run(30);
    }
    await fleet.run(20_000, () => all.every(({ seen }) => seen.ends === 1));
    expect(all.map(({ seen }) => seen.error)).to.deep.equal(all.map(() => undefined));
    // A worker that is asked for more than it has refuses, and the request would be on its second attempt.
    expect(fleet.summaries.filter(({ attempts }) => attempts > 1)).to.have.length(0);
    await fleet.run(5_000);
    for (const gateway of [a, b]) {
      expect((await fleet.routerFacts(gateway)).replicas).to.include({ outOfStep: 0, requests: 0 });
    }
  });

  it('tell one that starts late what they have placed, before a look has passed', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, gateways: 2 });
    await fleet.run(50);
    const [a, b] = [...fleet.gateways.values()];
    for (let i = 0; i < 6; i++) fleet.submit({ prompt: prompt(i), maxTokens: 2_000 }, (i % 2 === 0 ? a : b)?.frontend);
    await fleet.run(200);
    const late = fleet.addGateway('gateway-2-a');
    await fleet.run(120);
    expect((await fleet.routerFacts(late)).replicas).to.include({ peers: 2, outOfStep: 0, requests: 6 });
    fleet.killGateway(a?.id ?? '');
    await fleet.run(5);
    expect((await fleet.routerFacts(late)).replicas).to.include({ peers: 1, outOfStep: 0, requests: 3 });
  });

  it('know of each other again within two looks after half of what they say was lost for ten seconds', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, gateways: 3, seed: 7 });
    await fleet.run(50);
    const sides = [...fleet.gateways.values()];
    fleet.loseReplica(() => fleet.world.random() < 0.5);
    for (let i = 0; i < 60; i++) {
      fleet.submit({ prompt: prompt(i), maxTokens: 30 }, sides[i % 3]?.frontend);
      await fleet.run(160);
    }
    fleet.submit({ prompt: prompt(99), maxTokens: 4_000 }, sides[0]?.frontend);
    await fleet.run(50);
    fleet.loseReplica(() => false);
    await fleet.run(2_200);
    const facts = await Promise.all(sides.map((side) => fleet.routerFacts(side)));
    expect(facts.map(({ replicas }) => [replicas.outOfStep, replicas.requests])).to.deep.equal([
      [0, 0],
      [0, 1],
      [0, 1],
    ]);
    expect(facts.reduce((sum, { replicas }) => sum + replicas.gaps, 0)).to.be.greaterThan(0);
  });

  it('let a stream that stands at one of them take the slot that the other has freed, before its new requests', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1, gateways: 2, engine: { slots: 2 }, mode: 'least-loaded' });
    await fleet.run(50);
    const [a, b] = [...fleet.gateways.values()];
    const ofA = [1, 2].map((i) => fleet.submit({ prompt: prompt(i), maxTokens: 1_000 }, a?.frontend));
    await fleet.run(30);
    fleet.addWorker('decode', 'decode-1-a');
    const ofB = [3, 4].map((i) => fleet.submit({ prompt: prompt(i), maxTokens: 1_000 }, b?.frontend));
    await fleet.run(30);
    const fresh = [...Array(12).keys()].map((i) =>
      fleet.submit({ prompt: prompt(50 + i), maxTokens: 100 }, a?.frontend),
    );
    await fleet.run(30);
    // All that B had stands now, and only A has slots that get free.
    expect([...ofA, ...ofB, ...fresh].map(({ seen }) => seen.ends)).to.deep.equal(Array(16).fill(0));
    fleet.killWorker('decode-1-a');
    await fleet.run(30_000, () => [...ofA, ...ofB].every(({ seen }) => seen.ends === 1));
    expect([...ofA, ...ofB].map(({ seen }) => seen.error)).to.deep.equal(Array(4).fill(undefined));
    expect(fresh.filter(({ seen }) => seen.texts[0] !== '').length, 'new ones begun before').to.equal(0);
    expect((await fleet.routerFacts(a)).replicas.gaveWay).to.be.greaterThan(0);
    await fleet.run(60_000, () => fresh.every(({ seen }) => seen.ends === 1));
    expect(Object.values(await fleet.idle()).every((held) => held === 0)).to.equal(true);
  });

  it('keep out what has failed at one of them', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, gateways: 2, mode: 'least-loaded' });
    await fleet.run(50);
    const [a, b] = [...fleet.gateways.values()];
    fleet.lose(({ to, type }) => !(to.startsWith('decode.decode-0-a') && type === 'Generate'));
    fleet.submit({ prompt: prompt(1) }, a?.frontend);
    fleet.submit({ prompt: prompt(2) }, a?.frontend);
    await fleet.run(2_500);
    fleet.lose(() => true);
    const names = async (side: typeof a) =>
      (await fleet.routerFacts(side)).inhibited.map(({ incarnation }) => incarnation);
    expect(await names(a)).to.deep.equal(['decode-0-a']);
    expect(await names(b)).to.deep.equal(['decode-0-a']);
  });
});
