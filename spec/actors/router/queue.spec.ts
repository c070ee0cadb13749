import { expect } from 'chai';
import fc from 'fast-check';
import { classOf, type QueueClass, queueConfig, RouterQueue, type Waiting } from '../../../actors/router/queue.js';

const never = Number.POSITIVE_INFINITY;
const waiting = (id: string, over: Partial<Waiting<null>> = {}): Waiting<null> => ({
  id,
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
const anywhere = () => 'here';

function order(queue: RouterQueue<null>, nowMs = 0): string[] {
  const ids: string[] = [];
  for (;;) {
    const next = queue.take(nowMs, anywhere);
    if (next === undefined) return ids;
    ids.push(next.waiting.id);
  }
}

describe('the line in front of the workers', () => {
  it('is first come first served, priorities being seconds, and strict priority before all', () => {
    const queue = queueOf(cls());
    queue.enqueue(waiting('first', { arrivedMs: 1_000 }), 1);
    queue.enqueue(waiting('second', { arrivedMs: 2_000 }), 1);
    queue.enqueue(waiting('equal', { arrivedMs: 2_000 }), 1);
    queue.enqueue(waiting('urgent', { arrivedMs: 9_000, priority: 8.5 }), 1);
    queue.enqueue(waiting('negative', { arrivedMs: 1_500, priority: -100 }), 1);
    queue.enqueue(waiting('strict', { arrivedMs: 10_000, strictPriority: 1 }), 1);
    expect(order(queue)).to.deep.equal(['strict', 'urgent', 'first', 'negative', 'second', 'equal']);
  });

  it('serves the shortest uncached prompt first under wspt, and the last come first under lcfs', () => {
    const shortest = queueOf(cls({ policy: 'wspt' }));
    shortest.enqueue(waiting('long', { promptTokens: 1_000 }), 1);
    shortest.enqueue(waiting('cached', { promptTokens: 1_000, cachedTokens: 950 }), 1);
    shortest.enqueue(waiting('short', { promptTokens: 100 }), 1);
    shortest.enqueue(waiting('weighty', { promptTokens: 1_000, priority: 99 }), 1);
    expect(order(shortest)).to.deep.equal(['weighty', 'cached', 'short', 'long']);
    const last = queueOf(cls({ policy: 'lcfs' }));
    for (const n of [1, 2, 3]) last.enqueue(waiting(`${n}`, { arrivedMs: n }), 1);
    expect(order(last)).to.deep.equal(['3', '2', '1']);
  });

  it('blocks behind its head within a lane, and not beyond', () => {
    const queue = queueOf(cls());
    queue.enqueue(waiting('wants-a', { lane: 'a', arrivedMs: 1 }), 2);
    queue.enqueue(waiting('wants-a-too', { lane: 'a', arrivedMs: 2, promptTokens: 1 }), 2);
    queue.enqueue(waiting('wants-b', { lane: 'b', arrivedMs: 3 }), 2);
    const free = ({ id, lane }: Waiting<null>) => (lane === 'b' || id === 'wants-a-too' ? lane : undefined);
    expect(queue.take(0, free)?.waiting.id).to.equal('wants-b');
    expect(queue.take(0, free)).to.equal(undefined);
    expect(queue.size).to.equal(2);
    expect(order(queue)).to.deep.equal(['wants-a', 'wants-a-too']);
  });

  it('never dispatches what is past its deadline, and hands it out as expired exactly once', () => {
    const queue = queueOf(cls());
    queue.enqueue(waiting('late', { deadlineMs: 100 }), 1);
    queue.enqueue(waiting('later', { deadlineMs: 200 }), 1);
    queue.enqueue(waiting('in-time', { deadlineMs: 300 }), 1);
    expect(queue.expire(99)).to.deep.equal([]);
    expect(queue.take(250, anywhere)?.waiting.id).to.equal('in-time');
    expect(queue.take(250, anywhere)).to.equal(undefined);
    expect(queue.expire(250).map(({ id }) => id)).to.deep.equal(['late', 'later']);
    expect(queue.expire(never)).to.deep.equal([]);
    expect(queue.size).to.equal(0);
  });

  it('shares dispatches between classes as their quanta are: 512 to 128 is four to one', () => {
    const queue = queueOf(cls({ name: 'interactive', quantum: 512 }), cls({ name: 'batch', quantum: 128 }));
    for (let n = 0; n < 400; n++) {
      for (const name of ['interactive', 'batch']) {
        queue.enqueue(waiting(`${name}-${n}`, { class: name, arrivedMs: n, promptTokens: 700 + (n % 7) * 100 }), 1);
      }
    }
    const first = Array.from({ length: 320 }, () => queue.take(0, anywhere)?.waiting.class);
    expect(first.filter((name) => name === 'interactive').length).to.be.within(250, 262);
  });

  it('gives a class that cannot be dispatched no credit, and one that was empty none for that time', () => {
    const queue = queueOf(cls({ name: 'a', quantum: 100 }), cls({ name: 'b', quantum: 100 }));
    for (let n = 0; n < 40; n++) queue.enqueue(waiting(`a${n}`, { class: 'a', arrivedMs: n }), 1);
    for (let n = 0; n < 20; n++) queue.enqueue(waiting(`b${n}`, { class: 'b', arrivedMs: n }), 1);
    const onlyA = (each: Waiting<null>) => (each.class === 'a' ? 'here' : undefined);
    for (let n = 0; n < 20; n++) expect(queue.take(0, onlyA)?.waiting.class).to.equal('a');
    const next = Array.from({ length: 10 }, () => queue.take(0, anywhere)?.waiting.class);
    expect(next.filter((name) => name === 'b')).to.have.length(5);
  });

  it('holds what each limit allows and refuses the next, naming the limit; without workers limits are those of one', () => {
    const queue = queueOf(
      cls({ requestsPerWorker: 2 }),
      cls({ name: 'tokens', promptTokensPerWorker: 250 }),
      cls({ name: 'cached', cachedTokensPerWorker: 100 }),
    );
    expect([1, 2, 3, 4, 5].map((n) => queue.enqueue(waiting(`r${n}`), 2))).to.deep.equal([
      undefined,
      undefined,
      undefined,
      undefined,
      'requests',
    ]);
    expect([1, 2, 3].map((n) => queue.enqueue(waiting(`t${n}`, { class: 'tokens' }), 0))).to.deep.equal([
      undefined,
      undefined,
      'prompt-tokens',
    ]);
    expect(queue.enqueue(waiting('c1', { class: 'cached', cachedTokens: 100 }), 1)).to.equal(undefined);
    expect(queue.enqueue(waiting('c2', { class: 'cached', cachedTokens: 1 }), 1)).to.equal('cached-tokens');
    expect(queue.enqueue(waiting('r1'), 9)).to.equal('duplicate');
    expect(queue.enqueue(waiting('x', { class: 'none' }), 9)).to.equal('unknown-class');
    const small = new RouterQueue<null>({ classes: [cls()], limit: 1 });
    expect([1, 2].map((n) => small.enqueue(waiting(`${n}`), 9))).to.deep.equal([undefined, 'limit']);
    expect(queue.remove('r1')?.id).to.equal('r1');
    expect(queue.enqueue(waiting('again'), 2)).to.equal(undefined);
    expect(queue.waitingIn('default')).to.equal(4);
  });

  it('finds the class of a request by family and uncached length', () => {
    const rules = [
      { class: 'batch', family: 'batch' },
      { class: 'long', from: 2048 },
      { class: 'short', to: 2048 },
    ];
    expect(classOf(rules, 'batch', 9_999, 'default')).to.equal('batch');
    expect(classOf(rules, undefined, 2_048, 'default')).to.equal('long');
    expect(classOf(rules, 'other', 2_047, 'default')).to.equal('short');
    expect(classOf([], 'batch', 1, 'default')).to.equal('default');
  });

  it('refuses a configuration that cannot work, naming class and setting', () => {
    expect(() => queueConfig({ classes: [], limit: 1 })).to.throw(RangeError);
    expect(() => queueOf(cls(), cls())).to.throw(RangeError, 'default');
    expect(() => queueOf(cls({ quantum: 0 }))).to.throw(RangeError, 'quantum');
    expect(() => queueOf(cls({ requestsPerWorker: 1.5 }))).to.throw(RangeError, 'requestsPerWorker');
    expect(() => queueOf(cls({ policy: 'edf' as 'fcfs' }))).to.throw(RangeError, 'edf');
    expect(() => new RouterQueue({ classes: [cls()], limit: -1 })).to.throw(RangeError, 'limit');
  });

  it('loses nothing and repeats nothing, whatever is put in, taken, removed or expires', () => {
    const step = fc.oneof(
      fc.record({
        do: fc.constant('put' as const),
        class: fc.constantFrom('a', 'b', 'c'),
        lane: fc.constantFrom('', 'x'),
        life: fc.nat(40),
        tokens: fc.nat(500),
        priority: fc.nat(3),
      }),
      fc.record({ do: fc.constant('take' as const), free: fc.subarray(['a', 'b', 'c']) }),
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
        const inside = new Map<string, Waiting<null>>();
        const out = (gone: Waiting<null> | undefined) =>
          gone !== undefined && expect(inside.delete(gone.id)).to.equal(true);
        for (const [now, each] of steps.entries()) {
          if (each.do === 'put') {
            const one = waiting(`${now}`, {
              class: each.class,
              lane: each.lane,
              arrivedMs: now,
              deadlineMs: now + 1 + each.life,
              promptTokens: each.tokens,
              priority: each.priority,
            });
            expect(queue.enqueue(one, 1)).to.equal(undefined);
            inside.set(one.id, one);
          } else if (each.do === 'take') {
            const taken = queue.take(now, (one) => (each.free.includes(one.class) ? one.class : undefined));
            const could = [...inside.values()].some((one) => each.free.includes(one.class) && one.deadlineMs > now);
            expect(taken !== undefined).to.equal(could);
            if (taken !== undefined) expect(taken.waiting.deadlineMs).to.be.above(now);
            out(taken?.waiting);
          } else if (each.do === 'remove') out(queue.remove(`${each.which}`));
          else {
            const late = [...inside.values()].filter(({ deadlineMs }) => deadlineMs <= now).map(({ id }) => id);
            const expired = queue.expire(now);
            expect(expired.map(({ id }) => id).sort()).to.deep.equal(late.sort());
            for (const one of expired) out(one);
          }
          expect(queue.size).to.equal(inside.size);
          expect(queue.promptTokens).to.equal([...inside.values()].reduce((sum, one) => sum + one.promptTokens, 0));
        }
      }),
    );
  });
});
