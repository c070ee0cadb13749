import { expect } from 'chai';
import { type Behaviour, type Ctx, createKernel, virtualWorld } from '../../actors/index.js';
import { address, type Body } from '../../transport/index.js';
import { createFleet, prepared } from './fleet.js';

const promptOf = (tokens: number) => Uint32Array.from({ length: tokens }, (_, at) => at * 31);
const words = (text = '') => text.trim().split(' ').filter(Boolean);

/** Legs whose Accepted was sent, and how many frames left, for one request. */
async function served(engine: { speedup?: number; stepMs?: number }, prefill: number) {
  const fleet = createFleet({ prefill, decode: 1, engine });
  const accepted: string[] = [];
  let frames = 0;
  fleet.lose(({ type, body }) => {
    if (type === 'Accepted') accepted.push((body as Body<'Accepted'>).leg);
    return true;
  });
  fleet.loseSteps(() => {
    frames++;
    return true;
  });
  const { seen } = fleet.submit(prepared({ maxTokens: 50 }));
  await fleet.run(60_000, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  expect(words(seen.texts[0])).to.have.lengthOf(50);
  return { accepted: accepted.sort(), frames };
}

describe('messages that a request can do without', () => {
  it('are its Accepted if it is over before a sweep, while a slow one hears of both grants', async () => {
    for (const prefill of [0, 1]) expect((await served({ speedup: 0 }, prefill)).accepted).to.deep.equal([]);
    expect((await served({ speedup: 1, stepMs: 700 }, 1)).accepted).to.include.members(['decode', 'prefill']);
  });

  it('are frames of steps within a millisecond, while steps that take longer have one each', async () => {
    expect((await served({ speedup: 0 }, 0)).frames).to.be.lessThan(5);
    expect((await served({ speedup: 1, stepMs: 5 }, 0)).frames).to.be.at.least(50);
  });

  it('are offers of blocks that the hand-off lists at once, while those of a prompt still under way are offered', async () => {
    const offered = async (promptTokens: number) => {
      const fleet = createFleet({ prefill: 1, decode: 1, engine: { batchTokens: 64 } });
      const blocks: number[] = [];
      fleet.lose(({ type, body }) => {
        if (type === 'KvOffer') blocks.push(...(body as Body<'KvOffer'>).blocks.map(({ index }) => index));
        return true;
      });
      const { seen } = fleet.submit(prepared({ prompt: promptOf(promptTokens) }));
      await fleet.run(60_000, () => seen.ends > 0);
      expect(seen.error).to.equal(undefined);
      return blocks;
    };
    expect(await offered(60)).to.deep.equal([]);
    expect(await offered(300)).to.deep.equal([0, 1, 2, 3]);
  });

  it('keep token 1 waiting least: what follows it for the decode worker comes a millisecond later', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1, engine: { speedup: 0 } });
    const at: Record<string, number> = {};
    fleet.loseSteps(() => {
      at.token ??= fleet.world.now();
      return true;
    });
    fleet.lose(({ type }) => {
      if (type === 'PrefillDone') at.handOver = fleet.world.now();
      return true;
    });
    const { seen } = fleet.submit(prepared());
    await fleet.run(60_000, () => seen.ends > 0);
    expect((at.handOver as number) - (at.token as number)).to.be.within(0.9, 2);
  });

  it('are headers before the first token, but not for longer than about a second', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    fleet.lose(({ type }) => type !== 'Reserve');
    const { seen } = fleet.submit(prepared());
    await fleet.run(900);
    expect(seen.begun).to.equal(0);
    await fleet.run(300);
    expect(seen.begun).to.equal(1);
  });
});

type Act = (ctx: Ctx<Act>) => void;
const doer: Behaviour<Act, null> = {
  name: 'doer',
  start: () => null,
  handle(state, act, ctx) {
    act(ctx);
    return state;
  },
};
const round = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('a turn of the dispatcher', () => {
  it('takes a message through three actors', async () => {
    const kernel = createKernel({ world: virtualWorld({}) });
    const [a, b, c] = ['a', 'b', 'c'].map((name) => kernel.spawn(doer, address('decode', name, 'worker')));
    let arrived = false;
    kernel.tell(a as NonNullable<typeof a>, (ctx) =>
      ctx.tell(b as NonNullable<typeof b>, (next) =>
        next.tell(c as NonNullable<typeof c>, () => {
          arrived = true;
        }),
      ),
    );
    expect(arrived).to.equal(false);
    await round();
    expect(arrived).to.equal(true);
    await kernel.shutdown(1_000);
  });

  it('ends although an actor never runs out of messages, so that I/O and timers have theirs', async () => {
    const kernel = createKernel({ world: virtualWorld({}) });
    const again: Act = (ctx) => ctx.tell(ctx.self, again);
    const busy = kernel.spawn(doer, address('decode', 'busy', 'worker'));
    kernel.tell(busy, again);
    await round();
    await round();
    expect(kernel.depth(busy)).to.equal(1);
    await kernel.kill(busy);
    await kernel.shutdown(1_000);
  });
});
