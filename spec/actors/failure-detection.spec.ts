import { expect } from 'chai';
import type { WorkerMessage } from '../../actors/index.js';
import type { Body } from '../../transport/index.js';
import { createFleet, type Fleet, prepared, type Seen } from './fleet.js';

const slow = { speedup: 1, stepMs: 20 };

function submitted(fleet: Fleet, count: number): Seen[] {
  return Array.from({ length: count }, () => fleet.submit(prepared({ maxTokens: 200 })).seen);
}

/** Runs until all have ended; the longest time in which a stream that had begun stood still. */
async function longestPause(fleet: Fleet, all: readonly Seen[], ms = 60_000): Promise<number> {
  const lengths = new Map(all.map((seen) => [seen, { length: -1, at: fleet.world.now() }]));
  let longest = 0;
  await fleet.run(ms, () => {
    for (const [seen, last] of lengths) {
      const { length } = seen.texts.join('');
      if (length === last.length || seen.ends > 0) continue;
      if (last.length > 0) longest = Math.max(longest, fleet.world.now() - last.at);
      lengths.set(seen, { length, at: fleet.world.now() });
    }
    return all.every((seen) => seen.ends > 0);
  });
  for (const seen of all) {
    expect(seen.error).to.equal(undefined);
    expect(seen.texts.join('').trim().split(' ')).to.have.lengthOf(200);
  }
  return longest;
}

async function inhibited(fleet: Fleet): Promise<readonly string[]> {
  const { inhibited: out, suspects } = await fleet.routerFacts();
  return [...out.map(({ incarnation, reason }) => `${incarnation} ${reason}`), ...suspects.map((s) => s.incarnation)];
}

async function conserved(fleet: Fleet): Promise<void> {
  await fleet.run(2_000);
  for (const [where, held] of Object.entries(await fleet.idle())) expect(held, `held by ${where}`).to.equal(0);
}

describe('a worker that stands still', () => {
  for (const [phase, ms] of [
    ['transferring', 25],
    ['decoding', 1_000],
  ] as const) {
    for (const role of ['prefill', 'decode'] as const) {
      it(`costs a client less than 3 s when a ${role} worker freezes while requests are ${phase}`, async () => {
        const fleet = createFleet({ prefill: 2, decode: 2, engine: slow });
        const all = submitted(fleet, 8);
        await fleet.run(ms);
        fleet.freeze(`${role}-0-a`);
        expect(await longestPause(fleet, all, 15_000)).to.be.below(2_500);
        fleet.thaw(`${role}-0-a`);
        await conserved(fleet);
      });
    }
  }

  for (const [role, ms] of [
    ['prefill', 10],
    ['decode', 1_000],
  ] as const) {
    it(`costs a client less than 3 s when the engine of a ${role} worker wedges behind a live event loop`, async () => {
      const fleet = createFleet({ prefill: 2, decode: 2, engine: slow });
      const all = submitted(fleet, 8);
      await fleet.run(ms);
      fleet.wedge(`${role}-0-a`);
      expect(await longestPause(fleet, all, 15_000)).to.be.below(2_500);
      // Not suspect any more once its work was taken away: the probe will tell.
      expect(await inhibited(fleet)).to.deep.equal([`${role}-0-a ENGINE_WEDGED`]);
    });
  }

  it('lets the streams it had go before requests that have not begun', async () => {
    // Two at a time on each worker, a second each: those in line wait for seconds.
    const fleet = createFleet({ prefill: 0, decode: 2, engine: { speedup: 1, stepMs: 5, slots: 2 } });
    const all = submitted(fleet, 16);
    await fleet.run(500);
    fleet.killWorker('decode-0-a');
    expect(await longestPause(fleet, all), 'the slots of the other get free once').to.be.below(1_300);
  });

  it('serves again when it speaks, after its time out and a probe', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, engine: slow });
    const all = submitted(fleet, 8);
    await fleet.run(500);
    fleet.freeze('decode-0-a');
    await longestPause(fleet, all);
    fleet.thaw('decode-0-a');
    await fleet.run(300);
    const facts = await fleet.routerFacts();
    expect(facts.suspects, 'it spoke').to.deep.equal([]);
    expect(facts.inhibitions, 'eight requests, one failure').to.equal(1);
    await fleet.run(6_000);
    await longestPause(fleet, submitted(fleet, 8));
    expect(await inhibited(fleet)).to.deep.equal([]);
    await conserved(fleet);
  });

  it('is waited for if it is the only one: nothing it had is lost', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: slow });
    const all = submitted(fleet, 4);
    await fleet.run(1_000);
    fleet.freeze('decode-0-a');
    await fleet.run(4_000);
    expect((await fleet.facts()).byPhase).to.deep.equal({ queued: 4 });
    fleet.thaw('decode-0-a');
    await longestPause(fleet, all);
    await conserved(fleet);
  });

  it('is named to the client whose time ran out while it was waited for', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1, engine: slow, frontend: { queueMs: 3_000 } });
    const [seen] = submitted(fleet, 1);
    await fleet.run(500);
    fleet.freeze('decode-0-a');
    await fleet.run(10_000, () => seen?.ends === 1);
    expect(seen?.error).to.include({
      code: 'queue_timeout',
      message: 'No worker became free in time. The attempt before: The worker fell silent.',
    });
  });

  it('is not missed as a prefill worker if there is no other: decode workers compute the prompts', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: slow });
    fleet.freeze('prefill-0-a');
    await fleet.run(3_000);
    const all = submitted(fleet, 4);
    await fleet.run(60_000, () => all.every((seen) => seen.ends > 0));
    expect(all.map((seen) => seen.error)).to.deep.equal([undefined, undefined, undefined, undefined]);
    expect(fleet.commands.filter((type) => type === 'Reserve')).to.deep.equal([]);
  });
});

describe('what is nobody’s fault', () => {
  it('a frozen broker: no worker is suspected during it or after it', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, engine: slow });
    const all = submitted(fleet, 8);
    await fleet.run(1_000);
    fleet.lose(() => false);
    fleet.loseSteps(() => false);
    // The bus says so a second later.
    await fleet.run(1_000);
    fleet.broker(false);
    await fleet.run(20_000);
    fleet.broker(true);
    fleet.lose(() => true);
    fleet.loseSteps(() => true);
    await longestPause(fleet, all);
    expect(await inhibited(fleet)).to.deep.equal([]);
    expect((await fleet.routerFacts()).inhibitions).to.equal(0);
    expect((await fleet.facts()).migrations).to.equal(0);
  });

  it('a freeze of this gateway: it judges nobody and fails no deadline', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, engine: slow });
    const all = submitted(fleet, 8);
    await fleet.run(1_000);
    // Timers fire late and all at once, before anything that waits has been read.
    fleet.world.advance(60_000);
    await longestPause(fleet, all);
    expect(await inhibited(fleet)).to.deep.equal([]);
    expect((await fleet.routerFacts()).inhibitions).to.equal(0);
    expect((await fleet.facts()).migrations).to.equal(0);
  });

  for (const prefill of [0, 1]) {
    it(`an engine that computes one chunk for 8 s, with ${prefill} prefill workers: it goes on, which is all that is asked`, async () => {
      // 2,500 tokens at a speed at which Dynamo's formula gives one chunk 8 s, and a decode step 0.8.
      const fleet = createFleet({ prefill, decode: 2, engine: { speedup: 0.007 } });
      const prompt = Uint32Array.from({ length: 2_500 }, (_, at) => 1 + (at % 200));
      const { seen } = fleet.submit(prepared({ prompt, maxTokens: 3 }));
      const asked = fleet.world.now();
      await fleet.run(60_000, () => seen.texts.join('') !== '');
      expect(fleet.world.now() - asked, 'the first token').to.be.above(7_500);
      await fleet.run(60_000, () => seen.ends > 0);
      expect(seen.error).to.equal(undefined);
      expect(await inhibited(fleet)).to.deep.equal([]);
      expect((await fleet.routerFacts()).inhibitions).to.equal(0);
      expect((await fleet.facts()).migrations).to.equal(0);
    });
  }

  it('twenty bad prompts: no worker is kept out', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2 });
    const bad = Array.from({ length: 20 }, () => fleet.submit(prepared({ maxTokens: 40_000 })).seen);
    await fleet.run(5_000, () => bad.every((seen) => seen.ends > 0));
    expect(new Set(bad.map((seen) => seen.error?.status))).to.deep.equal(new Set([400]));
    expect(await inhibited(fleet)).to.deep.equal([]);
    expect((await fleet.routerFacts()).inhibitions).to.equal(0);
  });

  it('overload: no worker is kept out', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, engine: { ...slow, slots: 2 }, frontend: { queueMs: 600_000 } });
    await longestPause(fleet, submitted(fleet, 100), 600_000);
    expect(await inhibited(fleet)).to.deep.equal([]);
    expect((await fleet.routerFacts()).inhibitions).to.equal(0);
  });

  it('a worker that drains: its requests go elsewhere, and it is not kept out but dropped from view', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2 });
    const { ref } = fleet.workers.get('decode-0-a') ?? expect.fail('no worker');
    const idle = fleet.kernel.ask<WorkerMessage, unknown>(ref, (replyTo) => ({ type: 'Drain', idle: replyTo }), 1_000);
    await fleet.run(1);
    await idle;
    const all = submitted(fleet, 16);
    await longestPause(fleet, all);
    expect(await inhibited(fleet)).to.deep.equal([]);
    expect((await fleet.routerFacts()).inhibitions).to.equal(0);
    expect((await fleet.facts()).migrations, 'refused once, dropped at once').to.be.within(1, 8);
  });
});

describe('a worker that fails', () => {
  /** Says on behalf of decode workers that each of its requests failed. */
  function failing(fleet: Fleet, workers: string, code: string): void {
    fleet.lose((message) => {
      if (message.type !== 'Generate' && message.type !== 'Reserve') return true;
      if (!message.to.includes(workers)) return true;
      const worker = message.to.split('.')[1] as string;
      const { reply } = message.body as Body<'Generate'>;
      const { head } = message;
      fleet.world.setTimer(5, () =>
        fleet.redeliver({
          from: message.to,
          to: `gateway.${reply.gateway}.frontend` as typeof message.to,
          type: 'Failed',
          body: { num: reply.num, leg: 'decode', worker, code, message: '' },
          head,
        }),
      );
      return false;
    });
  }

  it('is out of routing at once, and its requests are served elsewhere', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, engine: slow });
    failing(fleet, 'decode-0-a', 'GPU_DECODE_FAILED');
    await longestPause(fleet, submitted(fleet, 8));
    expect(await inhibited(fleet)).to.deep.equal(['decode-0-a GPU_DECODE_FAILED']);
    expect((await fleet.facts()).migrations).to.be.within(1, 8);
    const before = (await fleet.facts()).migrations;
    await longestPause(fleet, submitted(fleet, 4));
    expect((await fleet.facts()).migrations, 'nothing went there').to.equal(before);
  });

  it('is tried all the same when every worker is out, and comes back by being of use', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, engine: slow });
    failing(fleet, '-a', 'GPU_DECODE_FAILED');
    const doomed = submitted(fleet, 2);
    await fleet.run(1_000);
    expect((await inhibited(fleet)).length).to.be.above(0);
    fleet.lose(() => true);
    await longestPause(fleet, submitted(fleet, 8));
    expect(
      doomed.every((seen) => seen.ends === 0),
      'nobody is left for them yet',
    ).to.equal(true);
  });

  it('shares the blame with its peer when a hand-off fails: the pair is out, neither of the two is', async () => {
    const fleet = createFleet({ prefill: 2, decode: 1, engine: slow });
    let failed = 0;
    fleet.lose((message) => {
      if (message.type !== 'PrefillDone' || failed > 0) return true;
      failed++;
      const { reply, handoff } = message.body as Body<'PrefillDone'>;
      fleet.redeliver({
        from: message.to,
        to: `gateway.${reply.gateway}.frontend` as typeof message.to,
        type: 'Failed',
        body: {
          num: reply.num,
          leg: 'decode',
          worker: 'decode-0-a',
          code: 'GPU_HANDOFF_MISMATCH',
          message: handoff.kvType,
        },
        head: message.head,
      });
      return false;
    });
    const all = submitted(fleet, 1);
    await fleet.run(1_000);
    const { inhibited: out } = await fleet.routerFacts();
    expect(out).to.have.lengthOf(1);
    expect(out[0]).to.include({ incarnation: 'decode-0-a', reason: 'GPU_HANDOFF_MISMATCH' });
    expect(out[0]?.prefill).to.match(/^prefill-/);
    // Another request uses the decode worker with the other prefill worker.
    const next = submitted(fleet, 1);
    await longestPause(fleet, next);
    expect(fleet.placement('prefill')).not.to.equal(out[0]?.prefill);
    expect(all[0]?.ends).to.be.at.most(1);
  });
});
