/** The prefill queue: what it promises to those who put jobs there and to those who take them, on both buses. */
import { expect } from 'chai';
import {
  type Bus,
  createMemoryBroker,
  decodeCbor,
  ensureStreams,
  type Head,
  type JobTaker,
  openJobBoard,
  parts,
  subjects,
  takeJobs,
} from '../../transport/index.js';
import { type Broker, codeOf, fresh, Gate, head, startBroker, stateOf } from './kit.js';

interface Side {
  readonly name: string;
  open(): Promise<void>;
  connect(role: 'prefill' | 'decode' | 'node'): Promise<Bus>;
  /** Lets so much time pass, as the broker sees it. */
  pass(ms: number): Promise<void>;
  close(): Promise<void>;
}

function memorySide(): Side {
  let now = 0;
  let timers: { at: number; fire(): void }[] = [];
  const clock = {
    now: () => now,
    wallTime: () => now,
    setTimer(ms: number, fire: () => void) {
      const timer = { at: now + ms, fire };
      timers.push(timer);
      return () => {
        timers = timers.filter((other) => other !== timer);
      };
    },
  };
  let broker = createMemoryBroker({ namespace: 'spec', clock });
  return {
    name: 'in memory',
    async open() {
      broker = createMemoryBroker({ namespace: 'spec', clock });
    },
    connect: async () => broker.connect(),
    async pass(ms) {
      now += ms;
      for (const timer of timers.filter(({ at }) => at <= now)) {
        timers = timers.filter((other) => other !== timer);
        timer.fire();
      }
    },
    async close() {},
  };
}

function natsSide(): Side {
  let broker: Broker;
  return {
    name: 'on NATS',
    async open() {
      broker = await startBroker();
    },
    connect: (role) => broker.connect(role),
    pass: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
    close: () => broker.stop(),
  };
}

/** A board, and the jobs of the decode worker that it is of, by number. */
function boardOf(bus: Bus, pool: string) {
  const self = fresh('decode');
  const board = openJobBoard(bus, pool, self);
  const { incarnation: decode } = parts(self);
  const put = (num: number, of: Head) => board.put({ reply: { gateway: 'gw', num }, decode, round: 1 }, of);
  return { ...board, put };
}

/** A taker, and what it has. */
function taker(bus: Bus, pool: string, gate: Gate) {
  const got: { readonly num: number; readonly ticket: number; readonly attempt: number }[] = [];
  const end: JobTaker = takeJobs(bus, pool, fresh('prefill'), (ticket, { body, attempt }) => {
    got.push({ num: body.reply.num, ticket, attempt });
    gate.change();
  });
  return { ...end, got, nums: () => got.map(({ num }) => num), ticketOf: (at: number) => got[at]?.ticket as number };
}

for (const side of [memorySide(), natsSide()]) {
  describe(`The prefill queue ${side.name}`, function () {
    this.timeout(30_000);
    let prefill: Bus;
    let other: Bus;
    let decode: Bus;
    let pools = 0;
    let pool = '';
    let board: ReturnType<typeof boardOf>;

    before(async () => {
      await side.open();
      [prefill, other, decode] = await Promise.all([
        side.connect('prefill'),
        side.connect('prefill'),
        side.connect('decode'),
      ]);
    });
    beforeEach(() => {
      pool = `pool-${++pools}`;
      board = boardOf(decode, pool);
    });
    after(() => side.close());

    it('gives each job to one taker, no more than it wants, and forgets it when it is done', async () => {
      const gate = new Gate();
      const one = taker(prefill, pool, gate);
      const two = taker(other, pool, gate);
      one.want(2);
      two.want(1);
      await Promise.all([1, 2, 3, 4, 5].map((num) => board.put(num, head())));
      await gate.until(() => one.got.length + two.got.length === 3);
      expect([...one.nums(), ...two.nums()].sort()).to.deep.equal([1, 2, 3]);
      expect(await board.backlog()).to.equal(2);
      for (const { got, done } of [one, two]) for (const { ticket } of got) done(ticket);
      two.want(5);
      await gate.until(() => two.got.length >= 3);
      expect(two.nums().slice(-2)).to.deep.equal([4, 5]);
      for (const { ticket } of two.got) two.done(ticket);
      await side.pass(50);
      expect(await board.backlog()).to.equal(0);
      one.stop();
      two.stop();
    });

    it('gives a job that comes back to somebody else at once, with the attempt it has', async () => {
      const gate = new Gate();
      const one = taker(prefill, pool, gate);
      one.want(1);
      await board.put(7, head({ attempt: 3 }));
      await gate.until(() => one.got.length === 1);
      const two = taker(other, pool, gate);
      two.want(1);
      one.giveBack(one.ticketOf(0));
      await gate.until(() => two.got.length === 1);
      expect(two.got[0]).to.include({ num: 7, attempt: 3 });
      two.done(two.ticketOf(0));
      one.stop();
      two.stop();
    });

    it('gives a job to another taker when the first is silent, and not while that one is at work', async () => {
      const gate = new Gate();
      const one = taker(prefill, pool, gate);
      one.want(2);
      await board.put(1, head({ budgetMs: 60_000 }));
      await board.put(2, head({ budgetMs: 60_000 }));
      await gate.until(() => one.got.length === 2);
      const busy = one.ticketOf(0);
      const two = taker(other, pool, gate);
      two.want(2);
      for (let i = 0; i < 3; i++) {
        await side.pass(1_700);
        one.working([busy]);
      }
      await side.pass(100);
      await gate.until(() => two.got.length === 1);
      expect(two.nums()).to.deep.equal([2]);
      two.done(two.ticketOf(0));
      one.done(busy);
      one.stop();
      two.stop();
    });

    it('ends a job that nobody has taken in time, and buries one that cannot be read', async () => {
      const s = subjects('spec');
      const node = await side.connect('node');
      const dead: unknown[] = [];
      const gate = new Gate();
      await node.follow('DEAD', s.dead('prefill'), 'new', ({ data }) => {
        dead.push(decodeCbor(data));
        gate.change();
      });
      await board.put(1, head({ budgetMs: 20 }));
      await node.store(s.job(pool), Uint8Array.of(0xff, 0x00), `${pool}-bad`, 3_000);
      await side.pass(100);
      await board.put(2, head());
      const one = taker(prefill, pool, gate);
      one.want(3);
      await gate.until(() => one.got.length === 1 && dead.length === 1);
      expect(one.nums()).to.deep.equal([2]);
      expect(dead[0]).to.include({ code: 'NET_MALFORMED' });
      expect(one.counters).to.include({ expired: 1, malformed: 1 });
      one.done(one.ticketOf(0));
      one.stop();
    });

    it('buries a job that was handed out five times and never done, and goes on with the next', async () => {
      const node = await side.connect('node');
      const dead: unknown[] = [];
      const gate = new Gate();
      await node.follow('DEAD', subjects('spec').dead('prefill'), 'new', ({ data }) => {
        dead.push(decodeCbor(data));
        gate.change();
      });
      await board.put(1, head({ budgetMs: 60_000, attempt: 2 }));
      const one = taker(prefill, pool, gate);
      for (let times = 1; times <= 5; times++) {
        one.want(1);
        await gate.until(() => one.got.length === times);
        one.giveBack(one.ticketOf(times - 1));
      }
      one.want(1);
      await gate.until(() => dead.length === 1);
      expect(dead[0]).to.include({ code: 'WRK_JOB_DEAD', attempt: 2 });
      expect(one.counters).to.include({ taken: 5, buried: 1 });
      one.want(1);
      await board.put(2, head());
      await gate.until(() => one.got.length === 6);
      expect(one.got[5]?.num).to.equal(2);
      one.done(one.ticketOf(5));
      await side.pass(50);
      expect(await board.backlog()).to.equal(0);
      one.stop();
    });

    it('says that nobody takes jobs where nobody ever did', async () => {
      expect(await codeOf(board.backlog())).to.equal('NET_NO_TAKER');
    });
  });
}

describe('The prefill queue and its broker', function () {
  this.timeout(60_000);
  let broker: Broker;
  afterEach(() => broker.stop());

  it('refuses a job when it is full, and is there again with its takers after a crash that took all jobs', async () => {
    const settings = { tape: 'metadata', sizeFactor: 0.001 } as const;
    broker = await startBroker({ settings });
    const node = await broker.connect('node');
    const prefill = await broker.connect('prefill');
    const decode = await broker.connect('decode');
    const board = boardOf(decode, 'p');
    let refused = '';
    for (let num = 1; refused === '' && num < 2_000; num++) {
      const code = await codeOf(board.put(num, head({ req: 'r'.repeat(128) })));
      if (code !== 'resolved') refused = code;
    }
    expect(refused).to.equal('NET_STREAM_FULL');

    const gate = new Gate();
    const one = taker(prefill, 'p', gate);
    one.want(1);
    await gate.until(() => one.got.length === 1);
    await broker.kill();
    await stateOf(prefill, 'down');
    await broker.restart();
    await stateOf(node, 'up');
    await ensureStreams(node, settings);
    await Promise.all([stateOf(prefill, 'up'), stateOf(decode, 'up')]);
    // What the crash took is not given back by anybody, and harms nobody.
    one.done(one.ticketOf(0));
    one.want(1);
    await board.put(5_000, head());
    await gate.until(() => one.got.length === 2);
    expect(one.got[1]?.num).to.equal(5_000);
  });

  it('lets decode workers put and prefill workers take, and nobody else do either', async () => {
    broker = await startBroker();
    const s = subjects('spec');
    const [gateway, prefill, decode] = await Promise.all([
      broker.connect('gateway'),
      broker.connect('prefill'),
      broker.connect('decode'),
    ]);
    const bytes = new Uint8Array(1);
    expect(await codeOf(decode.store(s.job('p'), bytes, 'a', 3_000))).to.equal('resolved');
    expect(await codeOf(gateway.store(s.job('p'), bytes, 'b', 3_000))).to.equal('NET_DENIED');
    expect(await codeOf(prefill.store(s.job('p'), bytes, 'c', 3_000))).to.equal('NET_DENIED');
    const stolen: unknown[] = [];
    for (const bus of [gateway, decode]) bus.take(s.job('p'), (taken) => void stolen.push(taken)).want(1);
    const gate = new Gate();
    const mine: number[] = [];
    const taking = prefill.take(s.job('p'), ({ deliveries, done }) => {
      done();
      mine.push(deliveries);
      gate.change();
    });
    taking.want(1);
    await gate.until(() => mine.length === 1);
    expect(mine).to.deep.equal([1]);
    expect(await codeOf(gateway.backlog(s.job('p')))).to.not.equal('resolved');
    expect(stolen).to.deep.equal([]);
  });
});
