import { expect } from 'chai';
import {
  type Behaviour,
  type Ctx,
  createKernel,
  type ExitReason,
  type Kernel,
  type Ref,
  type SeededDispatcher,
  seededDispatcher,
  type VirtualWorld,
  virtualWorld,
} from '../../actors/index.js';
import { address } from '../../transport/index.js';

const at = (name: string) => address('node', 'spec', name);
const crash = (): never => {
  throw new Error('crash');
};

type Act = (ctx: Ctx<Act>) => void;
const doer = (options: Partial<Behaviour<Act, null>> = {}): Behaviour<Act, null> => ({
  name: 'doer',
  start: () => null,
  handle(state, act, ctx) {
    act(ctx);
    return state;
  },
  ...options,
});

describe('kernel: the life of an actor', () => {
  let world: VirtualWorld;
  let dispatcher: SeededDispatcher;
  let kernel: Kernel;

  beforeEach(() => {
    world = virtualWorld();
    dispatcher = seededDispatcher();
    kernel = createKernel({ world, dispatcher });
  });

  it('ends with the error when a handler throws, handles nothing after it, and says its last words', async () => {
    const words: unknown[] = [];
    const dead: unknown[] = [];
    kernel.onDeadLetter(({ message }) => dead.push(message));
    const ref = kernel.spawn(doer({ stopped: (_, reason) => void words.push(reason.kind) }), at('a'));
    const never: Act = () => words.push('handled');
    kernel.tell(ref, crash);
    kernel.tell(ref, never);
    const exit = kernel.exit(ref);
    dispatcher.drain();
    expect(await exit).to.have.nested.property('error.message', 'crash');
    expect(words).to.deep.equal(['error']);
    expect(dead).to.deep.equal([never]);
    expect(kernel.counters.crashes).to.equal(1);
    expect(world.logged.filter(({ level }) => level === 'error')).to.have.length(1);
  });

  it('keeps the thrown thing as cause when it is not an Error', async () => {
    const ref = kernel.spawn(doer(), at('a'));
    kernel.tell(ref, () => {
      throw 'text';
    });
    dispatcher.drain();
    expect(await kernel.exit(ref)).to.have.nested.property('error.cause', 'text');
  });

  it('has ended when spawn returns if start throws, and frees the address', async () => {
    const ref = kernel.spawn(doer({ start: crash }), at('a'));
    expect(kernel.ended(ref)).to.have.nested.property('error.message', 'crash');
    expect(await kernel.exit(ref)).to.have.property('kind', 'error');
    expect(kernel.ended(kernel.spawn(doer(), at('a')))).to.equal(undefined);
  });

  it('fails with a clear message when a behaviour returns a promise, and leaves no rejection behind', async () => {
    const rejections: unknown[] = [];
    const note = (reason: unknown): void => void rejections.push(reason);
    process.on('unhandledRejection', note);
    try {
      const late = (): never => Promise.reject(new Error('late')) as never;
      const started = kernel.spawn(doer({ start: late }), at('a'));
      const handled = kernel.spawn(doer({ handle: late }), at('b'));
      kernel.tell(handled, () => {});
      dispatcher.drain();
      for (const [ref, where] of [
        [started, 'start'],
        [handled, 'handle'],
      ] as const) {
        const reason = await kernel.exit(ref);
        expect(reason).to.have.nested.property('error.code', 'ACT_ASYNC');
        expect(reason).to.have.nested.property('error.message').that.contains(`returned a promise from ${where}`);
      }
      await new Promise((resolve) => setImmediate(resolve));
      expect(rejections).to.deep.equal([]);
    } finally {
      process.off('unhandledRejection', note);
    }
  });

  it('refuses a second actor at an address that is taken', () => {
    kernel.spawn(doer(), at('a'));
    expect(() => kernel.spawn(doer(), at('a')))
      .to.throw()
      .with.property('code', 'ACT_NAME_TAKEN');
  });

  it('ends normally after the current message when it stops itself', async () => {
    const trace: string[] = [];
    const ref = kernel.spawn(doer({ stopped: (_, { kind }) => void trace.push(kind) }), at('a'));
    kernel.tell(ref, (ctx) => {
      ctx.stop();
      trace.push('rest of the message');
    });
    kernel.tell(ref, () => trace.push('next message'));
    dispatcher.drain();
    expect(await kernel.exit(ref)).to.deep.equal({ kind: 'normal' });
    expect(trace).to.deep.equal(['rest of the message', 'normal']);
  });

  it('stop lets it finish what the mailbox holds and takes nothing new', async () => {
    const trace: number[] = [];
    const ref = kernel.spawn(doer(), at('a'));
    for (const value of [1, 2, 3]) kernel.tell(ref, () => trace.push(value));
    const stopped = kernel.stop(ref, 1000);
    expect(kernel.tell(ref, () => trace.push(4))).to.equal(false);
    dispatcher.drain();
    expect(await stopped).to.deep.equal({ kind: 'shutdown' });
    expect(trace).to.deep.equal([1, 2, 3]);
    expect(world.timers).to.equal(0);
  });

  it('stop ends it as killed when the deadline comes first; the shorter of two deadlines counts', async () => {
    const ref = kernel.spawn(doer(), at('a'));
    kernel.tell(ref, () => {});
    const stopped = kernel.stop(ref, 1000);
    const again = kernel.stop(ref, 10);
    world.advance(9);
    expect(kernel.ended(ref)).to.equal(undefined);
    world.advance(1);
    expect([await stopped, await again]).to.deep.equal([{ kind: 'killed' }, { kind: 'killed' }]);
    expect(world.timers).to.equal(0);
  });

  it('kill from its own handler waits for the end of the message; from elsewhere it is immediate', async () => {
    const trace: string[] = [];
    const ref = kernel.spawn(doer({ stopped: () => void trace.push('ended') }), at('a'));
    kernel.tell(ref, () => {
      void kernel.kill(ref);
      trace.push('still here');
    });
    dispatcher.drain();
    expect(trace).to.deep.equal(['still here', 'ended']);
    const other = kernel.spawn(doer(), at('b'));
    void kernel.kill(other);
    expect(kernel.ended(other)).to.deep.equal({ kind: 'killed' });
  });

  it('contains a throw in the last words', async () => {
    const ref = kernel.spawn(doer({ stopped: crash }), at('a'));
    expect(await kernel.kill(ref)).to.deep.equal({ kind: 'killed' });
    expect(world.logged.map(({ message }) => message)).to.deep.equal(['last words failed']);
  });

  it('may send in its last words, but is owed nothing any more', async () => {
    const heard: string[] = [];
    const other = kernel.spawn(doer(), at('b'));
    const ref = kernel.spawn(
      doer({
        stopped(_, __, ctx) {
          ctx.tell(other, () => heard.push('farewell'));
          ctx.after(1, () => {});
        },
      }),
      at('a'),
    );
    await kernel.kill(ref);
    dispatcher.drain();
    expect(heard).to.deep.equal(['farewell']);
    expect(world.timers).to.equal(0);
  });

  describe('watch', () => {
    const watcher = (seen: ExitReason[], target: Ref<never>): Behaviour<ExitReason, null> => ({
      name: 'watcher',
      start(ctx) {
        ctx.watch(target, (reason) => reason);
        return null;
      },
      handle(state, reason) {
        seen.push(reason);
        return state;
      },
    });

    it('tells how the target ended, once', async () => {
      const seen: ExitReason[] = [];
      const target = kernel.spawn(doer(), at('b'));
      kernel.spawn(watcher(seen, target), at('a'));
      kernel.tell(target, crash);
      dispatcher.drain();
      await kernel.kill(target);
      dispatcher.drain();
      expect(seen.map(({ kind }) => kind)).to.deep.equal(['error']);
    });

    it('tells at once of a target that has ended already, even when its address has a new life', async () => {
      const seen: ExitReason[] = [];
      const target = kernel.spawn(doer(), at('b'));
      await kernel.kill(target);
      kernel.spawn(doer(), at('b'));
      kernel.spawn(watcher(seen, target), at('a'));
      dispatcher.drain();
      expect(seen).to.deep.equal([{ kind: 'killed' }]);
    });

    it('is forgotten by the target when the watcher ends first', async () => {
      const target = kernel.spawn(doer(), at('b'));
      const watchers = (): number => (target as unknown as { readonly watchers: Set<unknown> }).watchers.size;
      const first = kernel.spawn(watcher([], target), at('a'));
      expect(watchers()).to.equal(1);
      await kernel.kill(first);
      expect(watchers()).to.equal(0);
    });

    it('of something that is no actor fails the watcher', async () => {
      const ref = kernel.spawn(doer(), at('a'));
      kernel.tell(ref, (ctx) => ctx.watch({ path: 'forged' } as unknown as Ref<never>, () => () => {}));
      dispatcher.drain();
      expect(await kernel.exit(ref)).to.have.nested.property('error.code', 'ACT_FOREIGN_REF');
    });
  });

  describe('pipe', () => {
    const piped = (work: Promise<string>, heard: string[]): void => {
      const ref = kernel.spawn(doer(), at('a'));
      kernel.tell(ref, (ctx) =>
        ctx.pipe<string>(
          work,
          100,
          (value) => () => heard.push(value),
          (error) => () => heard.push((error as Error & { code?: string }).code ?? error.message),
        ),
      );
      dispatcher.drain();
    };

    it('brings the value of a promise, or its error, as a message', async () => {
      const heard: string[] = [];
      piped(Promise.resolve('value'), heard);
      await Promise.resolve();
      dispatcher.drain();
      kernel = createKernel({ world, dispatcher });
      piped(Promise.reject(new Error('broken')), heard);
      await Promise.resolve();
      dispatcher.drain();
      expect(heard).to.deep.equal(['value', 'broken']);
      expect(world.timers).to.equal(0);
    });

    it('brings ACT_TIMEOUT when the promise does not settle in time', () => {
      const heard: string[] = [];
      piped(new Promise<string>(() => {}), heard);
      world.advance(100, dispatcher.drain);
      expect(heard).to.deep.equal(['ACT_TIMEOUT']);
    });
  });

  it('shutdown stops the youngest first, kills at the deadline what is left, and refuses new actors', async () => {
    const order: string[] = [];
    for (const name of ['a', 'b', 'c']) {
      const ref = kernel.spawn(doer({ stopped: (_, { kind }) => void order.push(`${name} ${kind}`) }), at(name));
      if (name === 'b') kernel.tell(ref, () => {});
    }
    const down = kernel.shutdown(100);
    expect(() => kernel.spawn(doer(), at('d')))
      .to.throw()
      .with.property('code', 'ACT_KERNEL_DOWN');
    await Promise.resolve();
    world.advance(100);
    await down;
    expect(order).to.deep.equal(['c shutdown', 'b killed', 'a killed']);
    expect(world.timers).to.equal(0);
  });
});
