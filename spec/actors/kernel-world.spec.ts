import { expect } from 'chai';
import {
  type Behaviour,
  type Ctx,
  createKernel,
  type Kernel,
  type Log,
  type SeededDispatcher,
  seededDispatcher,
  systemWorld,
  type VirtualWorldOptions,
  virtualWorld,
} from '../../actors/index.js';
import { address, type Body, type Head, type Post } from '../../transport/index.js';

const at = (name: string) => address('node', 'spec', name);
const to = address('decode', 'd', 'worker');
const head: Head = { req: 'r', attempt: 1, budgetMs: 1000 };
const cancel: Body<'Cancel'> = { reply: { gateway: 'g', num: 1 }, reason: 'client gone' };
const refusal = Object.assign(new Error('outbox is full'), { code: 'NET_OUTBOX_FULL' });
const throws = (): never => {
  throw refusal;
};

type Act = (ctx: Ctx<Act>) => void;
const doer: Behaviour<Act, null> = {
  name: 'doer',
  start: () => null,
  handle(state, act, ctx) {
    act(ctx);
    return state;
  },
};

const turns = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('kernel: the world', () => {
  let kernel: Kernel;
  let dispatcher: SeededDispatcher;

  const inWorld = (options: VirtualWorldOptions, act: Act) => {
    const world = virtualWorld(options);
    dispatcher = seededDispatcher();
    kernel = createKernel({ world, dispatcher });
    const ref = kernel.spawn(doer, at('a'));
    kernel.tell(ref, act);
    dispatcher.drain();
    return { world, ref };
  };

  const command =
    (heard: string[]): Act =>
    (ctx) =>
      ctx.command(to, 'Cancel', cancel, head, (code, message) => () => heard.push(code, message));
  const query =
    (heard: unknown[]): Act =>
    (ctx) =>
      ctx.query(
        to,
        'Resync',
        { reply: cancel.reply, attempt: 1, positions: [] },
        'Resynced',
        50,
        (reply) => () => heard.push(reply),
        (code) => () => heard.push(code),
      );

  it('posts commands, frames and steps under the actor’s own address', () => {
    const frame = { worker: 'd', seq: 1, items: [] };
    const { world } = inWorld({}, (ctx) => {
      ctx.command(to, 'Cancel', cancel, head, () => () => {});
      ctx.frame(to, 'KvRelease', { reply: cancel.reply }, head);
      ctx.step('g', frame);
    });
    expect(world.posted).to.deep.equal([
      { kind: 'command', from: at('a'), to, type: 'Cancel', body: cancel, head },
      { kind: 'frame', from: at('a'), to, type: 'KvRelease', body: { reply: cancel.reply }, head },
      { kind: 'step', gateway: 'g', frame },
    ]);
  });

  it('says nothing of a command that was stored', async () => {
    const heard: string[] = [];
    const { ref } = inWorld({}, command(heard));
    await turns();
    expect(dispatcher.drain()).to.equal(0);
    expect(heard).to.deep.equal([]);
    expect(kernel.depth(ref)).to.equal(0);
  });

  for (const [how, post] of [
    ['rejects', { command: () => Promise.reject(refusal) }],
    ['throws', { command: throws }],
  ] as const) {
    it(`brings a refusal with its code when the post ${how}`, async () => {
      const heard: string[] = [];
      const { ref } = inWorld({ post }, command(heard));
      await turns();
      dispatcher.drain();
      expect(heard).to.deep.equal(['NET_OUTBOX_FULL', 'outbox is full']);
      expect(kernel.ended(ref)).to.equal(undefined);
    });
  }

  it('names a refusal without a code ACT_POST', async () => {
    const heard: string[] = [];
    inWorld({ post: { command: () => Promise.reject(new Error('odd')) } }, command(heard));
    await turns();
    dispatcher.drain();
    expect(heard).to.deep.equal(['ACT_POST', 'odd']);
  });

  it('contains a frame or step whose post throws, and logs it', () => {
    const { world, ref } = inWorld({ post: { frame: throws, step: throws } }, (ctx) => {
      ctx.frame(to, 'KvRelease', { reply: cancel.reply }, head);
      ctx.step('g', { worker: 'd', seq: 1, items: [] });
    });
    expect(kernel.ended(ref)).to.equal(undefined);
    expect(world.logged.map(({ actor, fields }) => [actor, fields?.code])).to.deep.equal([
      [at('a'), 'NET_OUTBOX_FULL'],
      [at('a'), 'NET_OUTBOX_FULL'],
    ]);
  });

  it('brings the reply of a query, or the code of its failure', async () => {
    const reply: Body<'Resynced'> = { known: true, items: [] };
    const heard: unknown[] = [];
    const posts: Partial<Post>[] = [{ query: (() => Promise.resolve(reply)) as Post['query'] }, { query: throws }, {}];
    for (const post of posts) {
      inWorld({ post }, query(heard));
      await turns();
      dispatcher.drain();
    }
    expect(heard).to.deep.equal([reply, 'NET_OUTBOX_FULL', 'NET_NO_RESPONDER']);
  });

  it('drops results that come after the actor has ended', async () => {
    const heard: unknown[] = [];
    const { ref } = inWorld({ post: { command: () => Promise.reject(refusal) } }, (ctx) => {
      command(heard as string[])(ctx);
      query(heard)(ctx);
      ctx.stop();
    });
    await turns();
    dispatcher.drain();
    expect(heard).to.deep.equal([]);
    expect(kernel.ended(ref)).to.deep.equal({ kind: 'normal' });
    expect(kernel.counters.deadLetters).to.equal(0);
  });

  it('answers clock, randomness and ids from the world: the same seed gives the same answers', () => {
    const answers = (seed: number): unknown[] => {
      const heard: unknown[] = [];
      inWorld({ seed }, (ctx) => {
        heard.push(ctx.now(), ctx.wallTime(), ctx.random(), ctx.id(), ctx.address, ctx.self.path);
      });
      return heard;
    };
    expect(answers(1)).to.deep.equal(answers(1));
    expect(answers(1)).not.to.deep.equal(answers(2));
  });
});

describe('kernel: the real world, on nact', () => {
  const quiet: Log = { debug() {}, info() {}, warn() {}, error() {} };
  const post: Post = { command: throws, frame: throws, step: throws, query: throws };
  const world = systemWorld({ post, log: () => quiet });
  const letters = (index: number): string => [...String(index)].map((digit) => 'abcdefghij'[Number(digit)]).join('');

  it('makes ids of 26 characters that sort in the order they were made and do not repeat', () => {
    const ids = Array.from({ length: 20_000 }, () => world.id());
    expect(ids.every((id) => /^[0-9a-z]{26}$/.test(id))).to.equal(true);
    expect(new Set(ids).size).to.equal(ids.length);
    expect([...ids].sort()).to.deep.equal(ids);
  });

  it('draws numbers in [0, 1) that spread evenly', () => {
    const buckets = new Array<number>(10).fill(0);
    for (let draw = 0; draw < 10_000; draw++) {
      const value = world.random();
      expect(value).to.be.within(0, 1 - Number.EPSILON / 2);
      const bucket = Math.floor(value * 10);
      buckets[bucket] = (buckets[bucket] as number) + 1;
    }
    for (const count of buckets) expect(count).to.be.within(800, 1200);
  });

  it('does not fire a timer longer than Node can count', async () => {
    let fired = false;
    const cancelTimer = world.setTimer(2 ** 40, () => {
      fired = true;
    });
    await new Promise<void>((resolve) => void world.setTimer(2, resolve));
    cancelTimer();
    expect(fired).to.equal(false);
  });

  it('lets I/O and 999 others run while one actor’s mailbox never empties', async () => {
    const kernel = createKernel({ world });
    const busy = kernel.spawn(
      {
        name: 'busy',
        start: () => null,
        handle(state: null, message: null, ctx) {
          ctx.tell(ctx.self, message);
          return state;
        },
      },
      at('busy'),
    );
    for (let message = 0; message < 1000; message++) kernel.tell(busy, null);
    let handled = 0;
    let done: () => void = () => {};
    const all = new Promise<void>((resolve) => {
      done = resolve;
    });
    const counter: Behaviour<number, null> = {
      name: 'counter',
      start: () => null,
      handle(state) {
        if (++handled === 999 * 100) done();
        return state;
      },
    };
    for (let index = 0; index < 999; index++) {
      const ref = kernel.spawn(counter, at(`n${letters(index)}`));
      for (let message = 0; message < 100; message++) kernel.tell(ref, message);
    }
    const { readFile } = await import('node:fs/promises');
    await Promise.all([all, readFile(new URL(import.meta.url))]);
    expect(kernel.ended(busy)).to.equal(undefined);
    await kernel.kill(busy);
    await kernel.shutdown(1000);
  });

  it('gives each actor one turn per round, whatever its mailbox holds', async () => {
    const kernel = createKernel({ world });
    const order: string[] = [];
    const noted = (name: string): Behaviour<number, null> => ({
      name,
      start: () => null,
      handle(state) {
        if (order.at(-1) !== name) order.push(name);
        return state;
      },
    });
    const full = kernel.spawn(noted('full'), at('full'));
    const small = kernel.spawn(noted('small'), at('small'));
    for (let message = 0; message < 1000; message++) kernel.tell(full, message);
    kernel.tell(small, 0);
    await Promise.all([kernel.stop(full, 1000), kernel.stop(small, 1000)]);
    expect(order).to.deep.equal(['full', 'small', 'full']);
    await kernel.shutdown(1000);
  });

  it('never handles two messages at once, and a restarted actor hears nothing meant for the one before', async () => {
    const kernel = createKernel({ world });
    let inside = 0;
    let most = 0;
    let strangers = 0;
    const behaviour = (life: number): Behaviour<number, null> => ({
      name: 'phoenix',
      start: () => null,
      handle(state, message, ctx) {
        most = Math.max(most, ++inside);
        if (message !== life) strangers++;
        ctx.tell(ctx.self, life);
        inside--;
        if (ctx.random() < 0.1) throw new Error('crash');
        return state;
      },
    });
    for (let life = 0; life < 50; life++) {
      const ref = kernel.spawn(behaviour(life), at('phoenix'));
      for (let message = 0; message < 100; message++) kernel.tell(ref, life);
      await kernel.exit(ref);
      kernel.tell(ref, life);
    }
    expect([most, strangers]).to.deep.equal([1, 0]);
    expect(kernel.counters.crashes).to.equal(50);
    await kernel.shutdown(1000);
  });
});
