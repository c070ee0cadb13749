/** Every code of the refusal table, said by a worker to a running fleet: what becomes of the request, and of the worker. */
import { expect } from 'chai';
import type { WorkerMessage } from '../../actors/index.js';
import { clientError, meaningOf, type RefusalCode, refusals } from '../../actors/refusals.js';
import { address, type Body } from '../../transport/index.js';
import { createFleet, type Fleet, prepared } from './fleet.js';

const codes = Object.keys(refusals) as RefusalCode[];
const full: ReadonlySet<string> = new Set(['GPU_FULL', 'GPU_POOL_FULL', 'WRK_TOO_MANY']);
const refusing = 'decode-0-a';

/** From now on one decode worker answers every order with this code. Returns how often it was asked. */
function refuse(fleet: Fleet, code: string): () => number {
  let asked = 0;
  fleet.lose(({ type, to, body, head }) => {
    if (type !== 'Reserve' && type !== 'Generate') return true;
    if (!to.includes(refusing)) return true;
    asked++;
    const { num } = (body as Body<'Generate'>).reply;
    fleet.redeliver({
      from: to,
      to: address('gateway', 'gateway-0-a', 'frontend'),
      type: 'Refused',
      body: { num, leg: 'decode', worker: refusing, code, message: 'why' },
      head,
    });
    return false;
  });
  return () => asked;
}

describe('the refusal table, code by code', () => {
  for (const code of [...codes, 'NEVER_HEARD']) {
    const meaning = meaningOf(code);
    const fate = meaning.elsewhere ? 'is served elsewhere' : `fails with ${meaning.status}`;
    it(`${code}: the request ${fate}; kept out: ${meaning.inhibit}; dropped from view: ${meaning.drop}`, async () => {
      const fleet = createFleet({ prefill: 1, decode: 2 });
      const asked = refuse(fleet, code);
      const all = Array.from({ length: 6 }, () => fleet.submit(prepared()).seen);
      await fleet.run(40_000, () => all.every(({ ends }) => ends > 0));
      expect(asked(), 'it was asked').to.be.greaterThan(0);
      // At each load report and each slot that got free, not as fast as it answers.
      if (full.has(code)) expect(asked(), 'who is full is not asked without end').to.be.lessThan(40);

      const failed = all.filter(({ error }) => error !== undefined);
      expect(all.map(({ ends }) => ends)).to.deep.equal(all.map(() => 1));
      if (meaning.elsewhere) expect(failed).to.deep.equal([]);
      else expect(failed.map(({ error }) => error)).to.deep.equal(failed.map(() => clientError(code, 'why')));
      if (!meaning.elsewhere) expect(failed, 'no second worker was asked').to.have.length(asked());

      const { inhibited, inhibitions } = await fleet.routerFacts();
      const out = inhibited.map(({ incarnation, prefill, reason }) => [incarnation, prefill, reason]);
      if (meaning.inhibit === 'worker') expect(out).to.deep.equal([[refusing, undefined, code]]);
      if (meaning.inhibit === 'pair') expect(out).to.deep.equal([[refusing, 'prefill-0-a', code]]);
      if (meaning.inhibit === 'no') expect(inhibitions).to.equal(0);

      const before = asked();
      const next = Array.from({ length: 6 }, () => fleet.submit(prepared()).seen);
      await fleet.run(4_000, () => next.every(({ ends }) => ends > 0));
      if (meaning.drop || meaning.inhibit === 'worker') expect(asked(), 'nothing more went there').to.equal(before);
      else if (!full.has(code) && meaning.inhibit === 'no')
        expect(asked(), 'it is tried again').to.be.greaterThan(before);
    });
  }
});

describe('an order that a worker does not take', () => {
  type Order = Body<'Generate'>;
  const long = Uint32Array.from({ length: 40_000 }, () => 1);
  const cases: Readonly<Record<string, (order: Order) => Order>> = {
    WRK_WRONG_MODEL: ({ work, reply }) => ({ reply, work: { ...work, model: 'another' } }),
    GPU_TOO_LONG: ({ work, reply }) => ({ reply, work: { ...work, prompt: long } }),
    GPU_BAD_REQUEST: ({ work, reply }) => ({ reply, work: { ...work, prompt: new Uint32Array(0) } }),
  };
  const gateway = address('gateway', 'gateway-0-a', 'frontend');
  const decode = address('decode', 'decode-0-a', 'worker');
  const head = { req: 'r', attempt: 1, budgetMs: 5_000 };

  /** A fleet of one worker, an order as it gets them, and the codes it refuses with. */
  async function ordered({ waiting = 2 } = {}) {
    const engine = { slots: 1, waiting, speedup: 1, stepMs: 1_000_000 };
    const fleet = createFleet({ prefill: 0, decode: 1, engine });
    const codes: string[] = [];
    let order: Order | undefined;
    fleet.lose(({ type, body }) => {
      if (type === 'Refused') codes.push((body as Body<'Refused'>).code);
      if (type === 'Generate') order ??= body as Order;
      return true;
    });
    fleet.submit(prepared({ maxTokens: 2 }));
    await fleet.run(10_000, () => order !== undefined);
    if (order === undefined) throw new Error('no order came');
    const made = order;
    let num = 1_000;
    const send = async (type: 'Generate' | 'Prefill', change: (order: Order) => object) => {
      const body = change({ ...made, reply: { ...made.reply, num: ++num } });
      fleet.redeliver({ from: gateway, to: decode, type, body: body as Order, head });
      // At once: long before the accept deadline.
      await fleet.run(1);
    };
    return { fleet, codes, send };
  }

  for (const [code, change] of Object.entries(cases)) {
    it(`is answered at once with ${code}`, async () => {
      const { codes, send } = await ordered();
      await send('Generate', change);
      expect(codes).to.deep.equal([code]);
    });
  }

  it('is answered at once with WRK_MALFORMED if it is of a kind that is not for it', async () => {
    const { codes, send } = await ordered();
    await send('Prefill', (order) => ({ ...order, decode: 'decode-0-a', haveBlocks: 0 }));
    expect(codes).to.deep.equal(['WRK_MALFORMED']);
  });

  it('is answered at once with WRK_DRAINING once it has been told to end', async () => {
    const { fleet, codes, send } = await ordered();
    const { ref } = fleet.workers.get('decode-0-a') ?? expect.fail('no worker');
    const idle = fleet.kernel.ask<WorkerMessage, unknown>(ref, (replyTo) => ({ type: 'Drain', idle: replyTo }), 60_000);
    idle.catch(() => {});
    await fleet.run(1);
    await send('Generate', (order) => order);
    expect(codes).to.deep.equal(['WRK_DRAINING']);
  });

  it('is answered at once with GPU_FULL when its engine has neither a slot nor room in line', async () => {
    const { codes, send } = await ordered();
    for (let n = 0; n < 4; n++) await send('Generate', (order) => order);
    expect(codes.length).to.be.within(1, 4);
    expect(new Set(codes)).to.deep.equal(new Set(['GPU_FULL']));
  });

  it('is answered at once with WRK_TOO_MANY when the worker holds as many as it may, whatever its engine has room for', async () => {
    const { codes, send } = await ordered({ waiting: 2_000 });
    for (let n = 0; n < 1_010; n++) await send('Generate', (order) => order);
    expect(codes.length).to.be.within(10, 12);
    expect(new Set(codes)).to.deep.equal(new Set(['WRK_TOO_MANY']));
  });
});
