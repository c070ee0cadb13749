import { expect } from 'chai';
import { createFleet, type Fleet, prepared, type Seen } from './fleet.js';

/** The tokens a request has when nothing goes wrong and no prefill worker exists: the reference for every other run. */
async function reference(body: ReturnType<typeof prepared>): Promise<string[]> {
  const fleet = createFleet({ prefill: 0, decode: 1 });
  const { seen } = fleet.submit(body);
  await fleet.run(60_000, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  return seen.texts;
}

const words = (text = '') => text.trim().split(' ').filter(Boolean);

async function settled(fleet: Fleet): Promise<void> {
  await fleet.run(1_000);
  const held = await fleet.idle();
  for (const [where, count] of Object.entries(held)) expect(count, `held by ${where}`).to.equal(0);
}

function complete(seen: Seen, tokens = 50): void {
  expect(seen.error).to.equal(undefined);
  expect(seen.ends).to.equal(1);
  expect(seen.begun).to.equal(1);
  for (const text of seen.texts) expect(words(text)).to.have.lengthOf(tokens);
}

describe('a request through separate prefill and decode workers', () => {
  it('gives the same tokens as one worker alone, in at most three commands', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const { seen } = fleet.submit(body);
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(seen.texts).to.deep.equal(await reference(body));
    expect(fleet.commands).to.deep.equal(['Reserve', 'Prefill', 'PrefillDone']);
    expect(seen.usage).to.deep.include({ promptTokens: 200, completionTokens: 50 });
    await settled(fleet);
  });

  it('does it in one command when there is no prefill worker', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1 });
    const { seen } = fleet.submit();
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(fleet.commands).to.deep.equal(['Generate']);
    await settled(fleet);
  });

  it('serves several choices from one prompt, each with its own tokens', async () => {
    const body = prepared({ n: 3 });
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const { seen } = fleet.submit(body);
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(new Set(seen.texts).size).to.equal(3);
    expect(seen.texts).to.deep.equal(await reference(body));
    await settled(fleet);
  });

  it('ends at token 1 without a hand-off', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const { seen } = fleet.submit(prepared({ maxTokens: 1 }));
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen, 1);
    expect(fleet.commands).to.deep.equal(['Reserve', 'Prefill']);
    await settled(fleet);
  });

  it('ends before a stop string and frees the worker that would go on', async () => {
    const body = prepared({ maxTokens: 200 });
    const all = words((await reference(body))[0]);
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const { seen } = fleet.submit({ ...body, stop: [`${all[20]} ${all[21]}`] });
    await fleet.run(60_000, () => seen.ends > 0);
    expect(words(seen.texts[0])).to.deep.equal(all.slice(0, 20));
    expect(seen.finishes).to.deep.equal(['stop']);
    await settled(fleet);
  });

  it('waits in line, holding nothing, when more come than there are slots', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { slots: 2 } });
    const all = Array.from({ length: 20 }, () => fleet.submit().seen);
    await fleet.run(300_000, () => all.every((seen) => seen.ends > 0));
    for (const seen of all) complete(seen);
    await settled(fleet);
  });

  it('refuses with 529 what the line has no room for, and serves the rest', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { slots: 1 }, queueLimit: 3 });
    const all = Array.from({ length: 10 }, () => fleet.submit().seen);
    await fleet.run(300_000, () => all.every((seen) => seen.ends > 0));
    expect(all.filter((seen) => seen.error?.status === 529)).to.have.lengthOf(6);
    expect(all.filter((seen) => seen.usage)).to.have.lengthOf(4);
    await settled(fleet);
  });

  it('refuses more choices than any worker has slots', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { slots: 2 } });
    const { seen } = fleet.submit({ n: 3 });
    await fleet.run(1_000, () => seen.ends > 0);
    expect(seen.error).to.deep.include({ status: 400, code: 'too_many_choices' });
  });

  it('frees both workers when the client goes, in whatever phase', async () => {
    for (let at = 0; at < 60; at += 3) {
      const fleet = createFleet({ prefill: 1, decode: 1, engine: { speedup: 1 } });
      const { seen, ticket } = fleet.submit(prepared({ maxTokens: 1_000 }));
      await fleet.run(at);
      fleet.gone(ticket);
      await settled(fleet);
      expect(seen.ends, 'nothing is said to a client that is gone').to.equal(0);
      expect(fleet.summaries.map(({ outcome }) => outcome)).to.deep.equal(['cancelled']);
    }
  });

  it('a cancel that overtakes its Prefill leaves a tombstone', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    let kept: (() => void) | undefined;
    fleet.lose((message) => {
      if (message.type !== 'Prefill' || kept) return true;
      kept = () => void fleet.redeliver(message);
      return false;
    });
    const { ticket } = fleet.submit();
    await fleet.run(10);
    fleet.gone(ticket);
    await fleet.run(10);
    kept?.();
    await settled(fleet);
    expect(kept).not.to.equal(undefined);
  });
});

describe('a request whose worker is lost', () => {
  for (const role of ['prefill', 'decode'] as const) {
    it(`goes on with the same tokens when its ${role} worker is killed, at any moment, with another one there`, async () => {
      const body = prepared({ n: 2 });
      const expected = await reference(body);
      for (let at = 0; at <= 40; at += 2) {
        const fleet = createFleet({ prefill: 2, decode: 2, engine: { speedup: 10 }, seed: at + 1 });
        const { seen } = fleet.submit(body);
        await fleet.run(at);
        const victim = fleet.placement(role);
        if (victim) fleet.killWorker(victim);
        await fleet.run(120_000, () => seen.ends > 0);
        complete(seen);
        expect(seen.texts, `killed after ${at} ms`).to.deep.equal(expected);
        await settled(fleet);
      }
    });

    it(`waits for a restarted ${role} worker when it was the only one`, async () => {
      const body = prepared();
      const fleet = createFleet({ prefill: 1, decode: 1 });
      const { seen } = fleet.submit(body);
      await fleet.run(8);
      fleet.killWorker(`${role}-0-a`);
      await fleet.run(2_000);
      fleet.addWorker(role, `${role}-0-b`);
      await fleet.run(120_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.texts).to.deep.equal(await reference(body));
      await settled(fleet);
    });

    it(`goes on elsewhere within its deadlines when its ${role} worker is silent and nobody says so`, async () => {
      const body = prepared();
      const fleet = createFleet({ prefill: 2, decode: 2 });
      const { seen } = fleet.submit(body);
      await fleet.run(5);
      const victim = fleet.placement(role);
      fleet.killWorker(victim as string, false);
      await fleet.run(120_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.texts).to.deep.equal(await reference(body));
    });
  }

  it('fails with 503 after its attempts are used up', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1, frontend: { attempts: 2 } });
    const { seen } = fleet.submit(prepared({ maxTokens: 1_000 }));
    for (const next of ['b', 'c']) {
      await fleet.run(20);
      fleet.killWorker([...fleet.workers.keys()][0] as string);
      fleet.addWorker('decode', `decode-0-${next}`);
    }
    await fleet.run(1_000, () => seen.ends > 0);
    expect(seen.error?.status).to.equal(503);
    expect(seen.ends).to.equal(1);
    await settled(fleet);
  });

  it('fails with 503 when no worker comes back before its queue deadline', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1, frontend: { queueMs: 3_000 } });
    const { seen } = fleet.submit();
    await fleet.run(5);
    fleet.killWorker('decode-0-a');
    await fleet.run(10_000, () => seen.ends > 0);
    expect(seen.error).to.deep.include({ status: 503, code: 'no_worker' });
    expect(seen.error?.retryAfterMs).to.be.greaterThan(0);
  });
});

describe('a request whose messages are lost', () => {
  it('gets lost step frames repeated by the worker', async () => {
    const body = prepared();
    for (const lost of [1, 2, 5, 20, 49, 50]) {
      const fleet = createFleet({ prefill: 1, decode: 1 });
      let frames = 0;
      fleet.loseSteps(() => ++frames !== lost);
      const { seen } = fleet.submit(body);
      await fleet.run(60_000, () => seen.ends > 0);
      complete(seen);
      expect(seen.texts, `frame ${lost} lost`).to.deep.equal(await reference(body));
      expect(fleet.summaries[0]?.attempts).to.equal(1);
      await settled(fleet);
    }
  });

  it('survives the loss of every offer: PrefillDone repairs them', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { batchTokens: 64 } });
    let offers = 0;
    fleet.lose(({ type }) => {
      if (type === 'KvOffer') offers++;
      return type !== 'KvOffer';
    });
    const { seen } = fleet.submit(prepared());
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(offers).to.be.greaterThan(1);
    expect(fleet.summaries[0]?.attempts).to.equal(1);
    await settled(fleet);
  });

  it('frees P at the end of its lease when the release is lost', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    fleet.lose(({ type }) => type !== 'KvRelease' && type !== 'Ended');
    const { seen } = fleet.submit();
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    await fleet.run(60_000);
    await settled(fleet);
  });

  it('keeps its worker when one Reserve or one Accepted is lost: the command is repeated, the work is not', async () => {
    for (const type of ['Reserve', 'Accepted']) {
      const fleet = createFleet({ prefill: 1, decode: 1 });
      let first = true;
      fleet.lose((message) => {
        if (message.type !== type || !first) return true;
        first = false;
        return false;
      });
      const { seen } = fleet.submit();
      await fleet.run(60_000, () => seen.ends > 0);
      complete(seen);
      expect(fleet.summaries[0]?.attempts, type).to.equal(1);
      await settled(fleet);
    }
  });

  it('is tried elsewhere when Prefill or PrefillDone is never answered', async () => {
    for (const type of ['Prefill', 'PrefillDone']) {
      const fleet = createFleet({ prefill: 2, decode: 2 });
      let first = true;
      fleet.lose((message) => {
        if (message.type !== type || !first) return true;
        first = false;
        return false;
      });
      const { seen } = fleet.submit();
      await fleet.run(60_000, () => seen.ends > 0);
      complete(seen);
      expect(fleet.summaries[0]?.attempts, type).to.equal(2);
    }
  });

  it('keeps its deadlines from running while the broker is away', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 1, decode: 1, frontend: { betweenTokensMs: 1_000 } });
    const { seen } = fleet.submit(body);
    await fleet.run(20);
    fleet.broker(false);
    fleet.lose(() => false);
    fleet.loseSteps(() => false);
    await fleet.run(30_000);
    fleet.lose(() => true);
    fleet.loseSteps(() => true);
    fleet.broker(true);
    await fleet.run(60_000, () => seen.ends > 0);
    complete(seen);
    expect(seen.texts).to.deep.equal(await reference(body));
  });

  it('new requests are told 503 while the broker is away', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    fleet.broker(false);
    const { seen } = fleet.submit();
    await fleet.run(10);
    expect(seen.error).to.deep.include({ status: 503, code: 'broker_down' });
  });
});
