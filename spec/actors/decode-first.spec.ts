/** The decode-first flow: D holds its grant and leaves the prompt to whoever takes it from the queue. */
import { expect } from 'chai';
import { createFleet, type Fleet, type FleetOptions, prepared, type Seen } from './fleet.js';

const words = (text = '') => text.trim().split(' ').filter(Boolean);
const fleetOf = (options: FleetOptions) => createFleet({ disagg: { flow: 'decode-first' }, ...options });

async function reference(body: ReturnType<typeof prepared>): Promise<string[]> {
  const fleet = createFleet({ prefill: 0, decode: 1 });
  const { seen } = fleet.submit(body);
  await fleet.run(60_000, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  return seen.texts;
}

async function settled(fleet: Fleet): Promise<void> {
  await fleet.run(1_500);
  for (const [where, count] of Object.entries(await fleet.idle())) expect(count, `held by ${where}`).to.equal(0);
  expect(fleet.jobs.size(), 'jobs left on the queue').to.equal(0);
}

function complete(seen: Seen, tokens = 50): void {
  expect(seen.error).to.equal(undefined);
  expect(seen.ends).to.equal(1);
  for (const text of seen.texts) expect(words(text)).to.have.lengthOf(tokens);
}

async function served(fleet: Fleet, body = prepared()): Promise<Seen> {
  const { seen } = fleet.submit(body);
  await fleet.run(60_000, () => seen.ends > 0);
  complete(seen);
  expect(seen.texts).to.deep.equal(await reference(body));
  return seen;
}

describe('a request whose decode worker leaves the prompt to the queue', () => {
  it('gives the same tokens as one worker alone, and leaves nothing on the queue', async () => {
    const fleet = fleetOf({ prefill: 2, decode: 1 });
    await served(fleet);
    expect(fleet.commands).to.deep.equal(['Generate', 'Prefill', 'PrefillDone']);
    expect(fleet.jobs.counts.delivered).to.equal(1);
    expect(fleet.summaries[0]).to.deep.include({ attempts: 1 });
    expect(fleet.summaries[0]?.prefill).to.match(/^prefill-/);
    await settled(fleet);
  });

  it('serves several choices, and ends at token 1, as the other flow does', async () => {
    const fleet = fleetOf({ prefill: 1, decode: 1 });
    await served(fleet, prepared({ n: 3 }));
    const { seen } = fleet.submit(prepared({ maxTokens: 1 }));
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen, 1);
    await settled(fleet);
  });

  it('is computed by the decode worker when short, when its cache has most of it, or when nobody takes prompts', async () => {
    const short = fleetOf({ prefill: 1, decode: 1, limits: { maxLocalPrefillLength: 200 } });
    await served(short);
    const cached = fleetOf({ prefill: 1, decode: 1, limits: { maxLocalPrefillLength: 100 } });
    const body = prepared();
    await served(cached, body);
    const before = cached.jobs.counts.stored;
    await served(cached, { ...body, maxTokens: 50 });
    expect(cached.jobs.counts.stored).to.equal(before);
    const alone = fleetOf({ prefill: 0, decode: 1 });
    await served(alone);
    for (const fleet of [short, alone]) {
      expect(fleet.commands).to.deep.equal(['Generate']);
      expect(fleet.jobs.counts.stored).to.equal(0);
    }
    for (const fleet of [short, cached, alone]) await settled(fleet);
  });

  it('is computed by the decode worker when the queue is as long as it may be, full, or away', async () => {
    for (const code of ['NET_STREAM_FULL', 'NET_DOWN', undefined]) {
      const fleet = fleetOf({ prefill: 1, decode: 1, limits: code === undefined ? { maxPrefillQueueSize: 0 } : {} });
      fleet.jobs.refuse(code);
      await served(fleet);
      expect(fleet.commands).to.deep.equal(['Generate']);
      await settled(fleet);
    }
  });

  it('goes where both limits say that hold at the moment, whatever they were when the worker began', async () => {
    const fleet = fleetOf({ prefill: 1, decode: 1 });
    for (const [limits, offered] of [
      [{ maxLocalPrefillLength: 100, maxPrefillQueueSize: 1 }, 1],
      [{ maxLocalPrefillLength: 100, maxPrefillQueueSize: 0 }, 0],
      [{ maxLocalPrefillLength: 199, maxPrefillQueueSize: 1 }, 1],
      [{ maxLocalPrefillLength: 200, maxPrefillQueueSize: 1 }, 0],
    ] as const) {
      const before = fleet.jobs.counts.stored;
      fleet.limitPrefills(limits);
      await served(fleet);
      expect(fleet.jobs.counts.stored - before, JSON.stringify(limits)).to.equal(offered);
    }
    await settled(fleet);
  });

  it('is computed by the decode worker when nobody has taken it in time', async () => {
    const fleet = fleetOf({ prefill: 1, decode: 1 });
    fleet.freeze('prefill-0-a');
    const seen = await served(fleet);
    expect(seen.error).to.equal(undefined);
    expect(fleet.summaries[0]?.attempts).to.equal(1);
    fleet.thaw('prefill-0-a');
    await settled(fleet);
  });

  for (const how of ['killed', 'frozen', 'silently dead'] as const) {
    it(`goes to another taker at once when its taker is ${how}, in the same attempt`, async () => {
      const body = prepared({ n: 2 });
      const expected = await reference(body);
      const rounds = new Set<number>();
      for (const at of [1, 2, 4, 6, 8, 11, 20]) {
        const fleet = fleetOf({ prefill: 2, decode: 1, engine: { speedup: 4, slots: 2 }, seed: at });
        const { seen } = fleet.submit(body);
        await fleet.run(at);
        const victim = fleet.placement('prefill');
        if (victim !== undefined) {
          if (how === 'frozen') fleet.freeze(victim);
          else fleet.killWorker(victim, how === 'killed');
        }
        await fleet.run(120_000, () => seen.ends > 0);
        complete(seen);
        expect(seen.texts, `${how} after ${at} ms`).to.deep.equal(expected);
        if (fleet.summaries[0]?.attempts === 1) rounds.add(fleet.commands.filter((type) => type === 'Prefill').length);
        if (how === 'frozen' && victim !== undefined) fleet.thaw(victim);
        // What a dead taker held is given to another one, which hears that it is done.
        await fleet.run(how === 'killed' ? 6_000 : 31_000);
        await settled(fleet);
      }
      expect([...rounds], 'takers of one attempt').to.include.members([1, 2]);
    });
  }

  it('goes on elsewhere when its decode worker is killed, at any moment', async () => {
    const body = prepared({ n: 2 });
    const expected = await reference(body);
    for (let at = 0; at <= 40; at += 2) {
      const fleet = fleetOf({ prefill: 2, decode: 2, engine: { speedup: 4 }, seed: at + 1 });
      const { seen } = fleet.submit(body);
      await fleet.run(at);
      const victim = fleet.placement('decode');
      if (victim !== undefined) fleet.killWorker(victim);
      await fleet.run(120_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.texts, `killed after ${at} ms`).to.deep.equal(expected);
      await settled(fleet);
    }
  });

  it('starts with a fresh grant when its taker dies after some of its blocks were pulled', async () => {
    const body = prepared({ prompt: Uint32Array.from({ length: 640 }, (_, i) => (i * 13) % 50_000) });
    const fleet = fleetOf({ prefill: 2, decode: 1, engine: { speedup: 1, batchTokens: 64 } });
    let offers = 0;
    fleet.lose(({ type }) => {
      if (type === 'KvOffer') offers++;
      return true;
    });
    const { seen } = fleet.submit(body);
    await fleet.run(10_000, () => offers >= 3);
    expect(fleet.commands).to.not.include('PrefillDone');
    fleet.killWorker(fleet.placement('prefill') as string);
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(seen.texts).to.deep.equal(await reference(body));
    expect(fleet.summaries[0]?.attempts).to.equal(1);
    await fleet.run(6_000);
    await settled(fleet);
  });

  describe('and has the beginning of the prompt itself', () => {
    const story = (length: number) => Uint32Array.from({ length }, (_, i) => (i * 17 + 3) % 50_000);
    /** Another fleet's workers have the same names, and so have their pools: texts are compared when this one is done. */
    async function answered(fleet: Fleet, body: ReturnType<typeof prepared>): Promise<Seen> {
      const { seen } = fleet.submit(body);
      await fleet.run(60_000, () => seen.ends > 0);
      complete(seen);
      return seen;
    }
    /** D knows 400 tokens of the prompt, 6 blocks; whoever computed them is gone. */
    async function turnTwo(options: Partial<FleetOptions> = {}) {
      const fleet = fleetOf({ prefill: 2, decode: 1, ...options });
      await answered(fleet, prepared({ prompt: story(400) }));
      fleet.killWorker(fleet.summaries[0]?.prefill as string);
      return { fleet, body: prepared({ prompt: story(900) }) };
    }

    it('lends it to whoever takes the prompt, who computes the rest', async () => {
      const { fleet, body } = await turnTwo();
      const seen = await answered(fleet, body);
      expect(fleet.commands.slice(-3)).to.deep.equal(['Generate', 'Prefill', 'PrefillDone']);
      expect(seen.usage?.cachedTokens).to.equal(6 * 64);
      await settled(fleet);
      expect(seen.texts).to.deep.equal(await reference(body));
    });

    it('lends again what its next taker has not, when one was lost', async () => {
      const { fleet, body } = await turnTwo({ prefill: 3, engine: { speedup: 0.2, batchTokens: 64 } });
      const { seen } = fleet.submit(body);
      await fleet.run(60_000, () => fleet.commands.filter((type) => type === 'Prefill').length === 2);
      fleet.killWorker(fleet.placement('prefill') as string);
      await fleet.run(120_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.usage?.cachedTokens).to.equal(6 * 64);
      await fleet.run(6_000);
      await settled(fleet);
      expect(seen.texts).to.deep.equal(await reference(body));
    });

    it('does without where its pool has no room, and holds nothing when the client goes meanwhile', async () => {
      const { fleet, body } = await turnTwo({ engine: { poolBlocks: 16 } });
      const bodies = [body, prepared({ prompt: story(880) })];
      const all = await Promise.all(bodies.map((each) => answered(fleet, each)));
      await settled(fleet);
      for (const [at, { texts }] of all.entries()) expect(texts).to.deep.equal(await reference(bodies[at] ?? body));
      for (const afterMs of [0, 1, 2, 5, 20]) {
        const other = await turnTwo();
        const { ticket } = other.fleet.submit(other.body);
        await other.fleet.run(afterMs);
        other.fleet.gone(ticket);
        await settled(other.fleet);
      }
    });
  });

  it('is given up, and kept as a dead letter, after three takers died of it', async () => {
    const fleet = fleetOf({ prefill: 4, decode: 1, engine: { speedup: 0.1 } });
    const { seen } = fleet.submit();
    for (let deaths = 0; deaths < 3; deaths++) {
      await fleet.run(5);
      fleet.killWorker(fleet.placement('prefill') as string);
    }
    await fleet.run(1_000, () => seen.ends > 0);
    expect(seen.error).to.deep.include({ status: 500, code: 'wrk_job_dead' });
    expect(fleet.jobs.buried).to.have.length(1);
    await fleet.run(6_000);
    await settled(fleet);
    await served(fleet);
  });

  it('is offered again when the broker lost its memory before anybody took it', async () => {
    const fleet = fleetOf({ prefill: 1, decode: 1, engine: { slots: 2 } });
    fleet.freeze('prefill-0-a');
    const body = prepared();
    const { seen } = fleet.submit(body);
    await fleet.run(10);
    fleet.broker(false, true);
    await fleet.run(20);
    fleet.thaw('prefill-0-a');
    fleet.broker(true);
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(fleet.commands).to.include('Prefill');
    await settled(fleet);
  });

  it('is computed once when its job is there twice: the second taker hears that nobody wants it', async () => {
    const fleet = fleetOf({ prefill: 2, decode: 1 });
    fleet.jobs.repeat();
    await served(fleet);
    expect(fleet.jobs.counts.delivered).to.equal(2);
    expect(fleet.commands.filter((type) => type === 'Prefill')).to.have.length(1);
    await settled(fleet);
  });

  it('goes to another taker when the engine of the first takes no step, though that one goes on saying so', async () => {
    const fleet = fleetOf({ prefill: 2, decode: 1, engine: { speedup: 1 } });
    // What the gateway makes of its beats does not arrive: the queue alone notices.
    fleet.lose(({ type }) => type !== 'TakerLost');
    const body = prepared();
    const { seen } = fleet.submit(body);
    await fleet.run(4);
    const first = fleet.placement('prefill') as string;
    fleet.wedge(first);
    await fleet.run(20_000, () => seen.ends > 0);
    complete(seen);
    expect(seen.texts).to.deep.equal(await reference(body));
    expect(fleet.placement('prefill')).to.not.equal(first);
    expect(fleet.summaries[0]?.attempts).to.equal(1);
  });

  it('is cancelled on every leg when the client goes, in whatever phase', async () => {
    for (let at = 0; at < 60; at += 3) {
      const fleet = fleetOf({ prefill: 1, decode: 1, engine: { speedup: 1 } });
      const { seen, ticket } = fleet.submit(prepared({ maxTokens: 1_000 }));
      await fleet.run(at);
      fleet.gone(ticket);
      await settled(fleet);
      expect(seen.ends).to.equal(0);
    }
  });

  it('survives the loss of any one frame between the workers', async () => {
    for (const type of ['Taken', 'TakenBy', 'KvOffer', 'KvRelease', 'Accepted'] as const) {
      const fleet = fleetOf({ prefill: 2, decode: 1 });
      let first = true;
      fleet.lose((message) => {
        if (message.type !== type || !first) return true;
        first = false;
        return false;
      });
      const body = prepared();
      const { seen } = fleet.submit(body);
      await fleet.run(60_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.texts, type).to.deep.equal(await reference(body));
      await fleet.run(31_000);
      await settled(fleet);
    }
  });
});

describe('both pools flooded with ten times what they hold', () => {
  for (const flow of ['prefill-first', 'decode-first'] as const) {
    it(`end without a deadlock and without a grant left over, ${flow}`, async () => {
      const fleet = createFleet({
        prefill: 2,
        decode: 2,
        engine: { slots: 2, speedup: 4 },
        disagg: { flow },
      });
      const all = Array.from({ length: 80 }, (_, i) => fleet.submit(prepared({ n: 1 + (i % 2), maxTokens: 20 })));
      await fleet.run(30);
      for (const [i, { ticket, seen }] of all.entries()) if (i % 7 === 3 && seen.ends === 0) fleet.gone(ticket);
      const left = all.filter((_, i) => i % 7 !== 3);
      await fleet.run(600_000, () => left.every(({ seen }) => seen.ends > 0));
      for (const { seen } of left) expect(seen.error).to.equal(undefined);
      // Most prompts were computed by the one pool for the other.
      expect(fleet.commands.filter((type) => type === 'Prefill').length).to.be.at.least(40);
      await settled(fleet);
      for (const { facts } of await Promise.all(
        [...fleet.workers.keys()].map(async (worker) => ({ facts: await fleet.workerFacts(worker) })),
      ))
        expect(facts).to.deep.include({ granted: 0, leaked: 0, jobs: 0 });
    });
  }
});
