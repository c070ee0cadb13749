import { expect } from 'chai';
import {
  costConfig,
  createKernel,
  oneClass,
  type Ref,
  type RouterFacts,
  type RouterMessage,
  routerActor,
  seededDispatcher,
  virtualWorld,
} from '../../../actors/index.js';
import { refusals } from '../../../actors/refusals.js';
import type { Suspicion } from '../../../actors/registry/liveness.js';
import type { RouteRequest } from '../../../actors/router/choose.js';
import type { AttemptEnd, RouterReply } from '../../../actors/router/messages.js';
import { address, type InstanceInfo } from '../../../transport/index.js';

type Role = 'prefill' | 'decode';

/** A router alone, with what it answered. */
function routing(workers: Readonly<Record<string, number>>, queueLimit = 10_000) {
  const dispatcher = seededDispatcher();
  const world = virtualWorld({});
  const kernel = createKernel({ world, dispatcher });
  const routed = new Map<number, { prefill: string | undefined; decode: string }>();
  const order: number[] = [];
  const refused = new Map<number, string>();
  const asker: Ref<RouterReply> = kernel.spawn(
    {
      name: 'asker',
      start: () => null,
      handle(state: null, reply: RouterReply) {
        if (reply.type === 'Unroutable') refused.set(reply.num, reply.code);
        if (reply.type !== 'Routed') return state;
        order.push(reply.num);
        routed.set(reply.num, { prefill: reply.prefill, decode: reply.decode });
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
      queue: oneClass(queueLimit),
      inhibition: { firstMs: 5_000, longestMs: 60_000 },
    }),
    address('gateway', 'g', 'router'),
  );
  const tell = (message: RouterMessage) => {
    kernel.tell(router, message);
    dispatcher.drain();
  };
  const up = (incarnation: string, slots: number, card: Partial<InstanceInfo> = {}) => {
    const place = { node: 'n', host: 'h', pid: 1, draining: false, model: 'mock', engine: 'mock' };
    const component = incarnation.split('-')[0] as Role;
    const info: InstanceInfo = { component, instance: incarnation, incarnation, ...place, fingerprint: 'f', slots };
    tell({ type: 'InstanceUp', info: { ...info, ...card } });
  };
  for (const [incarnation, slots] of Object.entries(workers)) up(incarnation, slots);
  return {
    routed,
    order,
    refused,
    tell,
    up,
    route(num: number, attempt = 1, choices = 1, exclude: readonly string[] = [], more: Partial<RouteRequest> = {}) {
      const prompt = { id: String(num), promptTokens: 1, hashes: new BigUint64Array(0) };
      const request = {
        num,
        attempt,
        model: 'mock',
        choices,
        exclude: new Set(exclude),
        ...prompt,
        queueBy: 1e9,
        ...more,
      };
      tell({ type: 'Route', request, replyTo: asker });
      return routed.get(num);
    },
    release(num: number, end?: AttemptEnd, attempt = 1) {
      tell({ type: 'Release', num, attempt, ...(end === undefined ? {} : { end }) });
    },
    suspect: (incarnation: string, code: Suspicion) =>
      tell({ type: 'Suspect', incarnation, code, frontend: asker as never }),
    gone: (incarnation: string) => tell({ type: 'InstanceGone', incarnation, reason: '', frontend: asker as never }),
    pass: (ms: number) => world.advance(ms, () => dispatcher.drain()),
    async facts(): Promise<RouterFacts> {
      const asked = kernel.ask<RouterMessage, RouterFacts>(router, (replyTo) => ({ type: 'Facts', replyTo }), 1_000);
      dispatcher.drain();
      return asked;
    },
  };
}

/** Design 8.2, written down a second time: whatever is not here keeps nobody out. */
const inhibits: Readonly<Record<string, 'worker' | 'pair'>> = {
  ACCEPT_TIMEOUT: 'worker',
  FIRST_TOKEN_TIMEOUT: 'worker',
  TOKEN_TIMEOUT: 'worker',
  WORKER_SILENT: 'worker',
  ENGINE_WEDGED: 'worker',
  STREAM_BROKEN: 'worker',
  GPU_DECODE_FAILED: 'worker',
  INTERNAL: 'worker',
  GPU_HANDOFF_MISMATCH: 'pair',
  GPU_HANDOFF_GONE: 'pair',
  WRK_GRANT_LAPSED: 'pair',
};
const drops = ['GPU_STOPPED', 'WRK_DRAINING', 'WRK_WRONG_INCARNATION', 'WORKER_DOWN'];

describe('a defect that shows in one request', () => {
  it('fails that one, which holds nothing, and the others find their places', async () => {
    const { route, refused, routed, release, facts } = routing({ 'decode-a': 1 });
    route(1, 1, 1, [], { hashes: null as never });
    expect(refused.get(1)).to.equal('INTERNAL');
    route(2);
    expect(routed.get(2)?.decode).to.equal('decode-a');
    // One that waits and cannot be placed when its turn comes.
    route(3, 1, 1, [], { hashes: null as never });
    route(4);
    release(2, 'served');
    expect(refused.get(3)).to.equal('INTERNAL');
    expect(routed.get(4)?.decode).to.equal('decode-a');
    expect((await facts()).queued).to.equal(0);
  });
});

describe('the router, told how an attempt ended', () => {
  for (const code of [...Object.keys(refusals), 'NEVER_HEARD_OF']) {
    const unknown = code === 'NEVER_HEARD_OF';
    const wanted = unknown ? 'worker' : inhibits[code];
    const what = wanted === undefined ? 'keeps nobody out' : `keeps the ${wanted} out`;
    const dropped = drops.includes(code);
    it(`${what} after ${code}${dropped ? ', and drops the worker from view' : ''}`, async () => {
      const router = routing({ 'prefill-0': 4, 'decode-0': 4 });
      router.pass(10);
      router.route(1);
      router.pass(10);
      router.release(1, { worker: 'decode-0', code });
      const { inhibited } = await router.facts();
      expect(
        inhibited.map(({ incarnation, prefill }) =>
          prefill === undefined ? incarnation : `${prefill} ${incarnation}`,
        ),
      ).to.deep.equal(wanted === undefined ? [] : wanted === 'pair' ? ['prefill-0 decode-0'] : ['decode-0']);
      router.up('decode-1', 4);
      router.up('prefill-1', 4);
      for (let num = 10; num < 14; num++) {
        const placed = router.route(num);
        if (dropped || wanted === 'worker') expect(placed?.decode).to.equal('decode-1');
        if (wanted === 'pair') expect(placed).not.to.deep.equal({ prefill: 'prefill-0', decode: 'decode-0' });
      }
      if (!dropped) return;
      router.up('decode-0', 4);
      expect(
        new Set([20, 21, 22, 23].map((num) => router.route(num)?.decode)),
        'the registry says it is there',
      ).to.include('decode-0');
    });
  }
});

describe('a worker that is out of routing', () => {
  function failed(workers: Readonly<Record<string, number>>, worker: string) {
    const router = routing(workers);
    router.pass(10);
    const num = [1, 2, 3, 4].find((each) => Object.values(router.route(each) ?? {}).includes(worker)) as number;
    router.pass(10);
    router.release(num, { worker, code: 'TOKEN_TIMEOUT' });
    for (const each of router.routed.keys()) router.release(each);
    router.routed.clear();
    return router;
  }

  it('gets one probe after its time, and traffic after the probe was served', () => {
    const router = failed({ 'decode-0': 8, 'decode-1': 8 }, 'decode-0');
    const decodes = (from: number) => [0, 1, 2, 3].map((i) => router.route(from + i)?.decode);
    expect(decodes(10)).to.deep.equal(Array(4).fill('decode-1'));
    router.pass(5_000);
    const next = decodes(20);
    expect(
      next.filter((each) => each === 'decode-0'),
      'one probe',
    ).to.have.lengthOf(1);
    const probe = 20 + next.indexOf('decode-0');
    router.tell({ type: 'PrefillDone', num: probe, attempt: 1 });
    expect(decodes(30), 'the emptier one').to.include('decode-0');
  });

  it('stays out when the probe fails, for twice as long', async () => {
    const router = failed({ 'decode-0': 8, 'decode-1': 1 }, 'decode-0');
    router.pass(5_000);
    router.route(10);
    router.route(11);
    const probe = router.routed.get(10)?.decode === 'decode-0' ? 10 : 11;
    router.pass(10);
    router.release(probe, { worker: 'decode-0', code: 'TOKEN_TIMEOUT' });
    const { inhibited } = await router.facts();
    expect(inhibited).to.deep.equal([
      { incarnation: 'decode-0', remainingMs: 10_000, reason: 'TOKEN_TIMEOUT', times: 2 },
    ]);
  });

  it('is not used because the others are full: those are waited for', () => {
    const router = failed({ 'decode-0': 8, 'decode-1': 1 }, 'decode-0');
    router.route(10);
    expect(router.route(11)).to.equal(undefined);
    router.release(10);
    expect(router.routed.get(11)?.decode).to.equal('decode-1');
  });

  it('is used if all are out: the one that is back first', () => {
    const router = failed({ 'decode-0': 8, 'decode-1': 8 }, 'decode-0');
    router.pass(100);
    router.route(10);
    router.pass(100);
    router.release(10, { worker: 'decode-1', code: 'STREAM_BROKEN' });
    expect(router.route(11)?.decode).to.equal('decode-0');
    expect(router.route(12)?.decode, 'not one at a time: there is nobody else').to.equal('decode-0');
  });

  it('is out for a suspicion until it is cleared, whoever else is there', async () => {
    const router = routing({ 'decode-0': 8, 'prefill-0': 8 });
    router.suspect('prefill-0', 'WORKER_SILENT');
    expect(router.route(1), 'D does without').to.deep.equal({ prefill: undefined, decode: 'decode-0' });
    router.suspect('decode-0', 'ENGINE_WEDGED');
    expect(router.route(2)).to.equal(undefined);
    router.tell({ type: 'Cleared', incarnation: 'decode-0' });
    expect(router.routed.get(2)?.decode, 'the least bad').to.equal('decode-0');
  });

  it('is out for as long as it lives, with a reason, when its card says blocks of another size', async () => {
    const { up, route, suspect, tell, facts, routed } = routing({});
    up('decode-odd', 8, { blockTokens: 16 });
    expect(route(1), 'waits for one that fits').to.equal(undefined);
    up('decode-even', 2, { blockTokens: 64 });
    expect(routed.get(1)?.decode).to.equal('decode-even');
    expect(route(2)?.decode).to.equal('decode-even');
    suspect('decode-odd', 'WORKER_SILENT');
    tell({ type: 'Cleared', incarnation: 'decode-odd' });
    tell({ type: 'Load', incarnation: 'decode-odd', busySlots: 0, waiting: 0, usedKvBlocks: 0 });
    route(3);
    expect(routed.get(3), 'waits for the other').to.equal(undefined);
    expect((await facts()).suspects).to.deep.equal([{ incarnation: 'decode-odd', reason: 'WRONG_CARD' }]);
  });

  it('is forgotten when it is gone, so that nothing is kept of incarnations that never come back', async () => {
    const router = failed({ 'decode-0': 8, 'decode-1': 8 }, 'decode-0');
    router.route(10);
    const { decode } = router.routed.get(10) ?? expect.fail('not routed');
    router.pass(10);
    router.gone('decode-0');
    router.gone(decode);
    router.release(10, { worker: decode, code: 'TOKEN_TIMEOUT' });
    expect((await router.facts()).inhibited).to.deep.equal([]);
  });
});

describe('the router’s line', () => {
  it('places requests that are tried again first, and turns none of them away', async () => {
    const router = routing({ 'decode-0': 1 }, 2);
    for (let num = 1; num <= 4; num++) router.route(num);
    router.route(5, 2);
    router.route(6, 2);
    expect([...router.refused]).to.deep.equal([[4, 'QUEUE_FULL']]);
    expect((await router.facts()).queued).to.equal(4);
    for (const num of [1, 5, 6, 2, 3]) router.release(num, 'served', num > 4 ? 2 : 1);
    expect(router.order).to.deep.equal([1, 5, 6, 2, 3]);
  });

  it('places streams that stand before requests that full workers sent back, and of each kind the one whose deadline is nearest', () => {
    const router = routing({ 'decode-0': 1 });
    router.route(1);
    router.route(2, 3, 1, [], { queueBy: 5_000 });
    router.route(3, 2, 1, [], { queueBy: 4_000 });
    router.route(4, 2, 1, ['decode-9'], { queueBy: 9_000, begun: true });
    router.route(5, 3, 1, ['decode-9'], { queueBy: 8_000, begun: true });
    for (const num of [1, 5, 4, 3, 2]) router.release(num, 'served', num === 1 ? 1 : num === 5 || num === 2 ? 3 : 2);
    expect(router.order).to.deep.equal([1, 5, 4, 3, 2]);
  });

  it('does not ask a worker again that is full for others, until it reports room', () => {
    const router = routing({ 'decode-0': 4 });
    router.route(1);
    router.release(1, { worker: 'decode-0', code: 'GPU_FULL' });
    expect(router.route(1, 2)).to.deep.equal({ prefill: undefined, decode: 'decode-0' });
    expect(router.order, 'refused once, asked once').to.deep.equal([1]);
    router.tell({ type: 'Load', incarnation: 'decode-0', busySlots: 4, waiting: 0, usedKvBlocks: 0 });
    expect(router.order).to.deep.equal([1]);
    router.tell({ type: 'Load', incarnation: 'decode-0', busySlots: 3, waiting: 0, usedKvBlocks: 0 });
    expect(router.order).to.deep.equal([1, 1]);
  });

  it('looks at one request per event, however many wait', () => {
    const router = routing({ 'decode-0': 1 });
    for (let num = 1; num <= 5_000; num++) router.route(num);
    const before = process.cpuUsage();
    for (let event = 0; event < 5_000; event++) {
      router.tell({ type: 'Load', incarnation: 'decode-0', busySlots: 1, waiting: 0, usedKvBlocks: 0 });
    }
    const { user, system } = process.cpuUsage(before);
    expect((user + system) / 5_000, 'microseconds per event').to.be.below(200);
    expect(router.order).to.deep.equal([1]);
  });
});
