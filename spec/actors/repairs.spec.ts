/** What the frontend does when only a part of what was said has come through. */
import { expect } from 'chai';
import {
  costConfig,
  createKernel,
  oneClass,
  type Ref,
  type RouterMessage,
  routerActor,
  seededDispatcher,
  virtualWorld,
} from '../../actors/index.js';
import type { RouterReply } from '../../actors/router/messages.js';
import { address, type Body } from '../../transport/index.js';
import { createFleet, type Fleet, prepared, type Seen } from './fleet.js';

const words = (text = '') => text.trim().split(' ').filter(Boolean);

async function settled(fleet: Fleet): Promise<void> {
  await fleet.run(1_000);
  for (const [where, count] of Object.entries(await fleet.idle())) expect(count, `held by ${where}`).to.equal(0);
}

async function finished(fleet: Fleet, seen: Seen, withinMs: number): Promise<void> {
  await fleet.run(withinMs, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  expect(seen.ends, `ended within ${withinMs} ms`).to.equal(1);
}

/** The texts of a request that nothing disturbs. */
async function reference(body: ReturnType<typeof prepared>): Promise<string[]> {
  const fleet = createFleet({ prefill: 0, decode: 1 });
  const { seen } = fleet.submit(body);
  await finished(fleet, seen, 60_000);
  return seen.texts;
}

describe('what was lost on the way', () => {
  it('asks the worker soon when the only frame of a request is lost, instead of waiting for its deadline', async () => {
    for (const prefill of [0, 1]) {
      const fleet = createFleet({ prefill, decode: 1 });
      let lost = 0;
      fleet.loseSteps(() => lost++ > 0);
      const { seen } = fleet.submit(prepared({ maxTokens: 1 }));
      await finished(fleet, seen, 4_000);
      expect(words(seen.texts[0])).to.have.lengthOf(1);
      expect(fleet.summaries[0]).to.deep.include({ attempts: 1, outcome: 'complete' });
      expect(fleet.summaries[0]?.ttftMs).to.be.greaterThan(0);
      await settled(fleet);
    }
  });

  it('asks D when P has handed over and all frames so far are lost', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 1, decode: 1 });
    fleet.loseSteps(() => false);
    const { seen } = fleet.submit(body);
    await fleet.run(1_000);
    fleet.loseSteps(() => true);
    await finished(fleet, seen, 4_000);
    expect(seen.texts).to.deep.equal(await reference(body));
    expect(fleet.summaries[0]?.attempts).to.equal(1);
    await settled(fleet);
  });

  it('does not blame P for having forgotten a request that D took over while P was being asked', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 1, decode: 1, queries: { delayMs: 40 } });
    // All frames are lost until P is asked; D's come while P's answer is on its way.
    fleet.loseSteps(() => false);
    const { seen } = fleet.submit(body);
    await fleet.run(40);
    fleet.broker(false);
    fleet.broker(true);
    await fleet.run(5);
    fleet.loseSteps(() => true);
    await finished(fleet, seen, 10_000);
    expect(seen.texts).to.deep.equal(await reference(body));
    expect(fleet.summaries[0]?.attempts).to.equal(1);
  });

  it('takes progress for an acceptance whose message is lost', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { speedup: 0.03, batchTokens: 512 } });
    fleet.lose(({ type, body }) => type !== 'Accepted' || (body as Body<'Accepted'>).leg === 'decode');
    const { seen } = fleet.submit(prepared({ maxTokens: 1, prompt: Uint32Array.from({ length: 4_000 }, (_, i) => i) }));
    await finished(fleet, seen, 120_000);
    expect(fleet.summaries[0]?.attempts).to.equal(1);
  });

  it('has the log probabilities of repeated tokens too', async () => {
    for (const lost of [1, 2, 7]) {
      const fleet = createFleet({ prefill: 1, decode: 1 });
      let frames = 0;
      fleet.loseSteps(() => ++frames !== lost);
      const { seen } = fleet.submit(prepared({ logprobs: 2, n: 2 }));
      await finished(fleet, seen, 60_000);
      for (const [choice, text] of seen.texts.entries()) {
        expect(
          seen.logprobs[choice]?.map(({ token }) => String(token)),
          `frame ${lost} lost`,
        ).to.deep.equal(words(text));
      }
    }
  });

  it('does not take tokens of an older attempt for those of the present one', async () => {
    const fleet = createFleet({ prefill: 0, decode: 1 });
    const { seen } = fleet.submit();
    await fleet.run(20);
    const worker = fleet.workers.get('decode-0-a');
    if (!worker) throw new Error('no worker');
    const resync = (attempt: number) =>
      fleet.kernel.ask<never, Body<'Resynced'>>(
        worker.ref as never,
        (replyTo) =>
          ({
            type: 'ResyncAsk',
            body: { reply: { gateway: 'gateway-0-a', num: 1 }, attempt, positions: [[0, 0]] },
            replyTo,
          }) as never,
        100,
      );
    const answers = Promise.all([resync(1), resync(2)]);
    await fleet.run(2);
    expect((await answers).map(({ known }) => known)).to.deep.equal([true, false]);
    await finished(fleet, seen, 60_000);
  });
});

describe('choices that end at different times', () => {
  it('lets the others go on quietly when one has met its stop string', async () => {
    const body = prepared({ n: 2, maxTokens: 400 });
    const all = words((await reference(body))[0]);
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const { seen } = fleet.submit({ ...body, stop: [`${all[20]} ${all[21]}`] });
    await finished(fleet, seen, 60_000);
    expect(seen.finishes).to.deep.equal(['stop', 'length']);
    expect(words(seen.texts[1])).to.have.lengthOf(400);
    expect(fleet.queries(), 'nobody is asked to repeat what is not wanted').to.equal(0);
    await settled(fleet);
  });
});

describe('attempts', () => {
  it('do not run out because workers were full', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 0, decode: 1, frontend: { attempts: 2 } });
    let refusals = 6;
    fleet.lose((message) => {
      if (message.type !== 'Generate' || refusals-- <= 0) return true;
      const { from: to, to: from, head } = message;
      const refused = { num: 1, leg: 'decode', worker: 'decode-0-a', code: 'GPU_FULL', message: '' };
      fleet.redeliver({ from, to, head, type: 'Refused', body: refused });
      return false;
    });
    const { seen } = fleet.submit(body);
    await fleet.run(5_000, () => words(seen.texts[0]).length > 5);
    fleet.killWorker('decode-0-a');
    fleet.addWorker('decode', 'decode-0-b');
    await finished(fleet, seen, 60_000);
    expect(seen.texts).to.deep.equal(await reference(body));
  });

  it('do not rule out the only workers for what the broker lost in an outage', async () => {
    for (const type of ['Reserve', 'Prefill', 'PrefillDone']) {
      const body = prepared();
      const fleet = createFleet({ prefill: 1, decode: 1 });
      let first = true;
      fleet.lose((message) => {
        if (message.type !== type || !first) return true;
        first = false;
        fleet.broker(false);
        return false;
      });
      const { seen } = fleet.submit(body);
      await fleet.run(500);
      fleet.broker(true);
      await finished(fleet, seen, 15_000);
      expect(seen.texts, type).to.deep.equal(await reference(body));
      // A lost Reserve is repeated to the same worker; the others cost an attempt, but rule nobody out.
      expect(fleet.summaries[0]?.attempts, type).to.equal(type === 'Reserve' ? 1 : 2);
      await settled(fleet);
    }
  });
});

describe('the router', () => {
  it('lets D do without P when the only prefill worker has failed the request', async () => {
    const body = prepared();
    const fleet = createFleet({ prefill: 1, decode: 1 });
    fleet.lose((message) => {
      if (message.type !== 'Prefill') return true;
      const { to: from, head } = message;
      const to = address('gateway', 'gateway-0-a', 'frontend');
      const failed = { num: 1, leg: 'prefill', worker: 'prefill-0-a', code: 'GPU_DECODE_FAILED', message: '' };
      fleet.redeliver({ from, to, head, type: 'Failed', body: failed });
      return false;
    });
    const { seen } = fleet.submit(body);
    await finished(fleet, seen, 5_000);
    expect(fleet.commands.filter((type) => type !== 'Cancel')).to.deep.equal(['Reserve', 'Prefill', 'Generate']);
    expect(seen.texts).to.deep.equal(await reference(body));
    await settled(fleet);
  });

  it('counts what a worker holds when it comes back into view before that was released', async () => {
    const dispatcher = seededDispatcher();
    const kernel = createKernel({ world: virtualWorld({}), dispatcher });
    const routed: number[] = [];
    const replyTo: Ref<RouterReply> = kernel.spawn(
      {
        name: 'asker',
        start: () => null,
        handle(state: null, reply: RouterReply) {
          if (reply.type === 'Routed') routed.push(reply.num);
          return state;
        },
      },
      address('gateway', 'g', 'frontend'),
    );
    const router = kernel.spawn(
      routerActor({
        gateway: 'g',
        mode: 'least-loaded',
        blockTokens: 64,
        cost: costConfig(),
        caches: { maxBytes: 1024 * 1024, assumeMs: 0 },
        queue: oneClass(9),
        inhibition: { firstMs: 5_000, longestMs: 60_000 },
      }),
      address('gateway', 'g', 'router'),
    );
    const tell = (message: RouterMessage) => {
      kernel.tell(router, message);
      dispatcher.drain();
    };
    const route = (num: number) => {
      const asked = { id: String(num), promptTokens: 1, hashes: new BigUint64Array(0) };
      const request = {
        num,
        attempt: 1,
        model: 'mock',
        choices: 1,
        exclude: new Set<string>(),
        queueBy: 1e9,
        ...asked,
      };
      tell({ type: 'Route', request, replyTo });
    };
    const place = { node: 'n', host: 'h', pid: 1, draining: false, model: 'mock', slots: 1 };
    const info = { component: 'decode', instance: 'decode-0', incarnation: 'decode-0-a', ...place } as const;
    tell({ type: 'InstanceUp', info });
    route(1);
    tell({ type: 'InstanceGone', incarnation: info.incarnation, reason: '', frontend: replyTo as never });
    tell({ type: 'InstanceUp', info });
    route(2);
    expect(routed, 'its slot is taken').to.deep.equal([1]);
    tell({ type: 'Release', num: 1, attempt: 1 });
    route(3);
    expect(routed, 'one slot, one request').to.deep.equal([1, 2]);
    tell({ type: 'Release', num: 2, attempt: 1 });
    expect(routed).to.deep.equal([1, 2, 3]);
  });
});

describe('a worker whose requests nobody asks after', () => {
  it('lets go of a request at its own deadline, even if its grant is renewed for ever', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, frontend: { totalMs: 8_000 }, engine: { speedup: 0.0001 } });
    fleet.lose(({ type }) => type !== 'Cancel');
    const { seen } = fleet.submit(prepared({ prompt: Uint32Array.from({ length: 4_000 }, (_, i) => i) }));
    await fleet.run(20_000, () => seen.ends > 0);
    expect(seen.error?.code).to.equal('total_timeout');
    await fleet.run(2_000);
    await settled(fleet);
  });
});
