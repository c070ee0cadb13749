/** Messages that handlers throw on: a bounded number of tries, then a dead letter, and everything else goes on. */
import { expect } from 'chai';
import {
  type Behaviour,
  createKernel,
  type DeadLetter,
  type Kernel,
  type Ref,
  type SeededDispatcher,
  seededDispatcher,
  virtualWorld,
  type WorkerMessage,
} from '../../actors/index.js';
import { address, type Envelope } from '../../transport/index.js';
import { createFleet, prepared } from './fleet.js';

interface Order {
  readonly type: string;
  readonly req: string;
}

describe('a message whose handler throws', () => {
  let kernel: Kernel;
  let dispatcher: SeededDispatcher;
  let handled: string[];
  let letters: DeadLetter[];

  beforeEach(() => {
    dispatcher = seededDispatcher();
    kernel = createKernel({ world: virtualWorld(), dispatcher });
    handled = [];
    letters = [];
    kernel.onDeadLetter((letter) => letters.push(letter));
  });

  function spawn(contain?: Behaviour<Order, null>['contain']): Ref<Order> {
    return kernel.spawn<Order, null>(
      {
        name: 'clerk',
        start: () => null,
        handle(state, order) {
          handled.push(`${order.type} ${order.req}`);
          if (order.req.startsWith('bad') || order.req === '') throw new Error(`cannot ${order.type}`);
          return state;
        },
        ...(contain && { contain }),
      },
      address('node', 'spec', 'clerk'),
    );
  }
  const twice: Behaviour<Order, null>['contain'] = (_state, _message, failures) => (failures <= 2 ? 'retry' : 'drop');
  const tell = (clerk: Ref<Order>, ...orders: [string, string][]) => {
    for (const [type, req] of orders) kernel.tell(clerk, { type, req });
    dispatcher.drain();
  };

  it('is handled at most twice more, then becomes a dead letter with its reason, and the rest of the mailbox goes on', () => {
    const clerk = spawn(twice);
    tell(clerk, ['Do', 'a'], ['Do', 'bad'], ['Do', 'b'], ['Do', 'c']);
    expect(handled.filter((entry) => entry === 'Do bad')).to.have.length(3);
    expect(handled.filter((entry) => entry !== 'Do bad')).to.deep.equal(['Do a', 'Do b', 'Do c']);
    expect(handled.indexOf('Do c')).to.be.lessThan(handled.lastIndexOf('Do bad'));
    expect(letters.map(({ reason, error }) => [reason, error?.message])).to.deep.equal([['failed', 'cannot Do']]);
    expect(kernel.ended(clerk)).to.equal(undefined);
    expect(kernel.counters).to.deep.include({ deadLetters: 1, crashes: 0 });
  });

  it('has one budget for the same request and type, and another for each other pair', () => {
    const clerk = spawn(twice);
    tell(clerk, ['Do', 'bad'], ['Do', 'bad'], ['Undo', 'bad'], ['Do', 'bad2']);
    // Of two that share a budget of three tries, one is dropped at the third and the other at the fourth.
    expect(handled.filter((entry) => entry === 'Do bad')).to.have.length(4);
    expect(handled.filter((entry) => entry === 'Undo bad')).to.have.length(3);
    expect(handled.filter((entry) => entry === 'Do bad2')).to.have.length(3);
    expect(letters).to.have.length(4);
  });

  it('fails the actor if it belongs to no request, if nobody contains it, or if containing it throws', () => {
    const throwing = () => {
      throw new Error('cannot contain');
    };
    for (const [contain, req] of [
      [twice, ''],
      [undefined, 'bad'],
      [throwing, 'bad'],
      [() => 'crash' as const, 'bad'],
    ] as const) {
      const clerk = spawn(contain);
      tell(clerk, ['Do', req]);
      expect(kernel.ended(clerk)?.kind).to.equal('error');
    }
    expect(kernel.counters.crashes).to.equal(4);
  });

  it('has its tries counted even among more failing pairs than are remembered, and is forgotten after them', () => {
    const clerk = spawn(twice);
    tell(clerk, ['Do', 'bad'], ...Array.from({ length: 1_100 }, (_, n): [string, string] => ['Do', `bad${n}`]));
    handled = [];
    tell(clerk, ['Do', 'bad']);
    expect(handled).to.have.length(3);
  });
});

describe('a worker that cannot handle a message of one request', () => {
  const gateway = 'gateway-0-a';
  /** What a defect would do with a message that fits its schema. */
  const broken = (type: string, num: number, attempt = 1) =>
    ({
      type,
      req: `r${num}`,
      attempt,
      budgetMs: 10_000,
      body: { reply: { gateway, num } },
    }) as unknown as WorkerMessage;

  for (const [role, type] of [
    ['decode', 'Reserve'],
    ['decode', 'Generate'],
    ['prefill', 'Prefill'],
  ] as const) {
    it(`answers ${type} with a failure that nobody tries again, and serves everybody else`, async () => {
      const fleet = createFleet({ prefill: 1, decode: 1 });
      const failed: Envelope<'Failed'>['body'][] = [];
      fleet.lose((message) => {
        if (message.type === 'Failed') failed.push(message.body as Envelope<'Failed'>['body']);
        return true;
      });
      const letters: DeadLetter[] = [];
      fleet.kernel.onDeadLetter((letter) => letters.push(letter));
      const { seen } = fleet.submit();
      await fleet.run(20);
      const worker = fleet.workers.get(`${role}-0-a`)?.ref as Ref<WorkerMessage>;
      fleet.kernel.tell(worker, broken(type, 999));
      // Whoever repeats the command meets the tombstone.
      await fleet.run(100);
      fleet.kernel.tell(worker, broken(type, 999));
      await fleet.run(60_000, () => seen.ends > 0);
      expect(seen.error).to.equal(undefined);
      expect(failed.map(({ num, code }) => [num, code])).to.deep.equal([[999, 'WRK_POISON']]);
      expect(letters.map(({ reason }) => reason)).to.deep.equal(['failed']);
      expect(fleet.kernel.counters.crashes).to.equal(0);
      await fleet.run(1_000);
      for (const [where, count] of Object.entries(await fleet.idle())) expect(count, `held by ${where}`).to.equal(0);
    });
  }

  it('gives up the request that a broken PrefillDone belongs to, which is served by the next attempt', async () => {
    const body = prepared({ maxTokens: 30 });
    const alone = createFleet({ prefill: 0, decode: 1 });
    const reference = alone.submit(body).seen;
    await alone.run(60_000, () => reference.ends > 0);

    const fleet = createFleet({ prefill: 1, decode: 2 });
    fleet.lose((message) => !(message.type === 'PrefillDone' && message.head.attempt === 1));
    const { seen } = fleet.submit(body);
    await fleet.run(5);
    const decode = fleet.placement('decode') as string;
    fleet.kernel.tell(fleet.workers.get(decode)?.ref as Ref<WorkerMessage>, broken('PrefillDone', 1));
    await fleet.run(4_000, () => seen.ends > 0);
    expect(seen.error).to.equal(undefined);
    expect(seen.texts).to.deep.equal(reference.texts);
    expect(fleet.summaries[0]?.attempts).to.equal(2);
    expect(fleet.kernel.counters.crashes).to.equal(0);
  });
});
