import { expect } from 'chai';
import fc from 'fast-check';
import {
  classOf,
  oneClass,
  type Pool,
  type QueueClass,
  queueConfig,
  RouterQueue,
  type Waiting,
} from '../../../actors/router/queue.js';

const never = Number.POSITIVE_INFINITY;
const waiting = (num: number, over: Partial<Waiting<null>> = {}): Waiting<null> => ({
  num,
  attempt: 1,
  class: 'default',
  lane: '',
  arrivedMs: 0,
  deadlineMs: never,
  strictPriority: 0,
  priority: 0,
  promptTokens: 100,
  cachedTokens: 0,
  item: null,
  ...over,
});
const cls = (over: Partial<QueueClass> = {}): QueueClass => ({ name: 'default', policy: 'fcfs', quantum: 1, ...over });
const queueOf = (...classes: QueueClass[]) => new RouterQueue<null>({ classes, limit: 1_000 });
const put = (queue: RouterQueue<null>, ...all: Waiting<null>[]) => {
  for (const each of all) expect(queue.enqueue(each, 1)).to.equal(undefined);
};

/** Those that found a place, while there are `most` of them. */
function placed(
  queue: RouterQueue<null>,
  most = never,
  fits: (each: Waiting<null>) => boolean = () => true,
): Waiting<null>[] {
  const out: Waiting<null>[] = [];
  queue.offer((each) => {
    if (out.length >= most || !fits(each)) return 'decode';
    out.push(each);
    return undefined;
  });
  return out;
}
const order = (queue: RouterQueue<null>, most = never) => placed(queue, most).map(({ num }) => num);

describe('the line in front of the workers', () => {
  it('is first come first served, priorities being seconds, and strict priority before all', () => {
    const queue = queueOf(cls());
    put(queue, waiting(1, { arrivedMs: 1_000 }), waiting(2, { arrivedMs: 2_000 }), waiting(3, { arrivedMs: 2_000 }));
    put(queue, waiting(4, { arrivedMs: 9_000, priority: 8.5 }), waiting(5, { arrivedMs: 1_500, priority: -100 }));
    put(queue, waiting(6, { arrivedMs: 10_000, strictPriority: 1 }));
    expect(order(queue)).to.deep.equal([6, 4, 1, 5, 2, 3]);
  });

  it('serves the shortest uncached prompt first under wspt, and the last come first under lcfs', () => {
    const shortest = queueOf(cls({ policy: 'wspt' }));
    put(shortest, waiting(1, { promptTokens: 1_000 }), waiting(2, { promptTokens: 1_000, cachedTokens: 950 }));
    put(shortest, waiting(3, { promptTokens: 100 }), waiting(4, { promptTokens: 1_000, priority: 99 }));
    expect(order(shortest)).to.deep.equal([4, 2, 3, 1]);
    const last = queueOf(cls({ policy: 'lcfs' }));
    for (const n of [1, 2, 3]) put(last, waiting(n, { arrivedMs: n }));
    expect(order(last)).to.deep.equal([3, 2, 1]);
  });

  it('offers requests that are tried again first, whatever class and priority the others have, each kind in its order', () => {
    const queue = queueOf(cls({ quantum: 1_000 }), cls({ name: 'b' }));
    put(queue, waiting(1, { strictPriority: 9 }), waiting(9, { attempt: 2, class: 'b', arrivedMs: 7 }), waiting(2));
    put(queue, waiting(8, { attempt: 3, lane: 'x', arrivedMs: 8 }), waiting(3, { class: 'b' }));
    expect(queue.again).to.equal(2);
    expect(order(queue, 2)).to.deep.equal([9, 8]);
    expect(order(queue)).to.have.members([1, 2, 3]);
  });

  it('does not look behind one that did not fit, but at those that ask for something else', () => {
    const queue = new RouterQueue<null>(oneClass(10_000));
    for (let num = 1; num <= 5_000; num++) put(queue, waiting(num, { lane: 'a', arrivedMs: num }));
    put(queue, waiting(6_000, { lane: 'b', arrivedMs: 6_000 }), waiting(6_001, { lane: 'c', arrivedMs: 6_001 }));
    const offered: number[] = [];
    queue.offer(({ num }) => {
      offered.push(num);
      return num > 5_000 ? undefined : 'decode';
    });
    expect(offered).to.deep.equal([1, 6_000, 6_001]);
    expect(queue.size).to.equal(5_000);
    expect(order(queue, 2)).to.deep.equal([1, 2]);
  });

  it('says who would only wait behind others, so that nobody looks for a place for it', () => {
    const queue = queueOf(cls());
    expect(queue.holdsBack(waiting(1))).to.equal(false);
    put(queue, waiting(1, { arrivedMs: 1 }));
    expect(queue.holdsBack(waiting(2, { arrivedMs: 2 }))).to.equal(true);
    expect(queue.holdsBack(waiting(2, { arrivedMs: 2, lane: 'x' }))).to.equal(false);
    expect(queue.holdsBack(waiting(2, { arrivedMs: 2, strictPriority: 1 }))).to.equal(false);
    expect(queue.holdsBack(waiting(2, { arrivedMs: 2, attempt: 2 }))).to.equal(false);
  });

  it('drops the attempt that gave up, not a later one', () => {
    const queue = queueOf(cls());
    put(queue, waiting(1, { attempt: 2 }), waiting(2));
    queue.drop(1, 1);
    queue.drop(2, 1);
    queue.drop(7, 1);
    expect(order(queue)).to.deep.equal([1]);
  });

  it('hands out what is past its deadline exactly once', () => {
    const queue = queueOf(cls());
    put(queue, waiting(1, { deadlineMs: 100 }), waiting(2, { deadlineMs: 200, attempt: 2 }));
    put(queue, waiting(3, { deadlineMs: 300 }));
    expect(queue.expire(99)).to.deep.equal([]);
    expect(queue.expire(250).map(({ num }) => num)).to.deep.equal([1, 2]);
    expect(queue.expire(250)).to.deep.equal([]);
    expect(order(queue)).to.deep.equal([3]);
    expect(queue.expire(never)).to.deep.equal([]);
    expect(queue.size).to.equal(0);
  });

  for (const perEvent of [1, 3, never]) {
    it(`shares dispatches between classes as their quanta are, with ${perEvent} places at a time: 512 to 128 is four to one`, () => {
      const queue = queueOf(cls({ name: 'interactive', quantum: 512 }), cls({ name: 'batch', quantum: 128 }));
      for (let n = 0; n < 400; n++) {
        for (const [at, name] of ['interactive', 'batch'].entries()) {
          put(queue, waiting(2 * n + at, { class: name, arrivedMs: n, promptTokens: 700 + (n % 7) * 100 }));
        }
      }
      const first: string[] = [];
      while (first.length < 320) first.push(...placed(queue, perEvent).map((each) => each.class));
      expect(first.slice(0, 320).filter((name) => name === 'interactive').length).to.be.within(250, 262);
    });
  }

  it('gives a class that cannot be dispatched no more credit than its next one costs, and one that was empty none', () => {
    const queue = queueOf(cls({ name: 'a', quantum: 100 }), cls({ name: 'b', quantum: 100 }));
    for (let n = 0; n < 40; n++) put(queue, waiting(n, { class: 'a', arrivedMs: n }));
    for (let n = 0; n < 20; n++) put(queue, waiting(100 + n, { class: 'b', arrivedMs: n }));
    const onlyA = (each: Waiting<null>) => each.class === 'a';
    for (let n = 0; n < 20; n++) expect(placed(queue, 1, onlyA)).to.have.length(1);
    const next = Array.from({ length: 10 }, () => placed(queue, 1)[0]?.class);
    expect(next.filter((name) => name === 'b').length).to.be.within(5, 6);
  });

  it('holds what each limit allows and refuses the next, naming the limit; without workers limits are those of one', () => {
    const queue = queueOf(
      cls({ requestsPerWorker: 2 }),
      cls({ name: 'tokens', promptTokensPerWorker: 250 }),
      cls({ name: 'cached', cachedTokensPerWorker: 100 }),
    );
    const asked = [1, 2, 3, 4, 5].map((n) => queue.enqueue(waiting(n), 2));
    expect(asked).to.deep.equal([undefined, undefined, undefined, undefined, 'requests']);
    const tokens = [11, 12, 13].map((n) => queue.enqueue(waiting(n, { class: 'tokens' }), 0));
    expect(tokens).to.deep.equal([undefined, undefined, 'prompt-tokens']);
    expect(queue.enqueue(waiting(21, { class: 'cached', cachedTokens: 100 }), 1)).to.equal(undefined);
    expect(queue.enqueue(waiting(22, { class: 'cached', cachedTokens: 1 }), 1)).to.equal('cached-tokens');
    expect(queue.enqueue(waiting(5, { attempt: 2 }), 2), 'one that has begun').to.equal(undefined);
    expect(queue.remove(1)?.num).to.equal(1);
    expect(queue.enqueue(waiting(6), 2)).to.equal(undefined);
    expect(queue.depths()[0]).to.deep.equal({ class: 'default', waiting: 4 });
    const small = new RouterQueue<null>(oneClass(1));
    expect([1, 2].map((n) => small.enqueue(waiting(n), 9))).to.deep.equal([undefined, 'limit']);
  });

  it('bounds what waits for either pool by itself, and counts a lane where its first is held up now', () => {
    const queue = new RouterQueue<null>({ ...oneClass(100), pools: { prefill: 2, decode: 1 } });
    const enqueue = (num: number, lane: string, shortOf?: Pool) => queue.enqueue(waiting(num, { lane }), 1, shortOf);
    expect(enqueue(1, 'a', 'prefill')).to.equal(undefined);
    expect(enqueue(2, 'a')).to.equal(undefined);
    expect(enqueue(3, 'a')).to.equal('pool');
    expect(enqueue(4, 'b', 'decode')).to.equal(undefined);
    expect(enqueue(5, 'c', 'decode')).to.equal('pool');
    queue.offer(({ lane }) => (lane === 'b' ? undefined : 'decode'));
    expect(enqueue(6, 'd', 'prefill')).to.equal(undefined);
    expect(enqueue(7, 'a'), 'those of lane a wait for D now').to.equal('pool');
  });

  it('takes requests of as many kinds as it can afford to look at, and no more', () => {
    const queue = new RouterQueue<null>(oneClass(10_000));
    for (let n = 0; n < 128; n++) put(queue, waiting(n, { lane: `${n}` }));
    expect(queue.enqueue(waiting(200, { lane: 'one too many' }), 1)).to.equal('lanes');
    expect(queue.enqueue(waiting(201, { lane: '7' }), 1)).to.equal(undefined);
  });

  it('finds the class of a request by family and uncached length', () => {
    const classes = [
      cls({ name: 'short', to: 2_048 }),
      cls({ name: 'batch', family: 'batch' }),
      cls({ name: 'long', from: 2_048, to: 10_000 }),
    ];
    expect(classOf(classes, 'batch', 9_999)).to.equal('batch');
    expect(classOf(classes, undefined, 2_048)).to.equal('long');
    expect(classOf(classes, 'other', 2_047)).to.equal('short');
    expect(classOf(classes, 'other', 10_000), 'fits none').to.equal('short');
    expect(classOf([cls(), ...classes], 'batch', 9_999)).to.equal('batch');
    expect(classOf([...classes, cls()], 'other', 10_000), 'the one for all others').to.equal('default');
  });

  it('refuses a configuration that cannot work, naming class and setting', () => {
    expect(() => queueConfig({ classes: [], limit: 1 })).to.throw(RangeError);
    expect(() => queueOf(cls(), cls())).to.throw(RangeError, 'default');
    expect(() => queueOf(cls({ quantum: 0 }))).to.throw(RangeError, 'quantum');
    expect(() => queueOf(cls({ requestsPerWorker: 1.5 }))).to.throw(RangeError, 'requestsPerWorker');
    expect(() => queueOf(cls({ policy: 'edf' as 'fcfs' }))).to.throw(RangeError, 'edf');
    expect(() => new RouterQueue(oneClass(-1))).to.throw(RangeError, 'limit');
    expect(() => new RouterQueue({ ...oneClass(1), pools: { prefill: -1 } })).to.throw(RangeError, 'prefill');
  });

  it('loses nothing and repeats nothing, whatever is put in, placed, removed or expires', () => {
    const step = fc.oneof(
      fc.record({
        do: fc.constant('put' as const),
        class: fc.constantFrom('a', 'b', 'c'),
        attempt: fc.constantFrom(1, 1, 1, 2),
        lane: fc.constantFrom('', 'x'),
        life: fc.nat(40),
        tokens: fc.nat(500),
        priority: fc.nat(3),
      }),
      fc.record({ do: fc.constant('offer' as const), free: fc.subarray(['a', 'b', 'c']), most: fc.nat(3) }),
      fc.record({ do: fc.constant('remove' as const), which: fc.nat(60) }),
      fc.record({ do: fc.constant('expire' as const) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
        const queue = queueOf(
          cls({ name: 'a', quantum: 300 }),
          cls({ name: 'b', policy: 'wspt' }),
          cls({ name: 'c', policy: 'lcfs', quantum: 7 }),
        );
        const inside = new Map<number, Waiting<null>>();
        const out = (gone: Waiting<null> | undefined) =>
          gone !== undefined && expect(inside.delete(gone.num)).to.equal(true);
        for (const [now, each] of steps.entries()) {
          if (each.do === 'put') {
            const one = waiting(now, {
              class: each.class,
              attempt: each.attempt,
              lane: `${each.class}${each.lane}`,
              arrivedMs: now,
              deadlineMs: now + 1 + each.life,
              promptTokens: each.tokens,
              priority: each.priority,
            });
            put(queue, one);
            inside.set(one.num, one);
          } else if (each.do === 'offer') {
            const could = [...inside.values()].filter((one) => each.free.includes(one.class)).length;
            const taken = placed(queue, each.most, (one) => each.free.includes(one.class));
            expect(taken).to.have.length(Math.min(could, each.most));
            for (const one of taken) out(one);
          } else if (each.do === 'remove') out(queue.remove(each.which));
          else {
            const late = [...inside.values()].filter(({ deadlineMs }) => deadlineMs <= now).map(({ num }) => num);
            const expired = queue.expire(now);
            expect(expired.map(({ num }) => num).sort()).to.deep.equal(late.sort());
            for (const one of expired) out(one);
          }
          expect(queue.size).to.equal(inside.size);
          expect(queue.again).to.equal([...inside.values()].filter(({ attempt }) => attempt > 1).length);
        }
      }),
    );
  });
});
