import { expect } from 'chai';
import {
  type Behaviour,
  createKernel,
  type Kernel,
  type Ref,
  type SeededDispatcher,
  seededDispatcher,
  type VirtualWorld,
  virtualWorld,
} from '../../actors/index.js';
import { actorChild, createSupervisor, type Strategy } from '../../supervisors/otp/index.js';
import { address } from '../../transport/index.js';
import { quiet } from './otp-children.js';

type Word = 'work' | 'crash' | 'leave';

describe('otp: actors as children', () => {
  let world: VirtualWorld;
  let dispatcher: SeededDispatcher;
  let kernel: Kernel;

  beforeEach(() => {
    world = virtualWorld();
    dispatcher = seededDispatcher();
    kernel = createKernel({ world, dispatcher });
  });

  const at = (name: string) => address('node', 'spec', name);

  const worker = (trace: string[], name: string): Behaviour<Word, number> => ({
    name,
    start() {
      trace.push(`+${name}`);
      return 0;
    },
    handle(state, word, ctx) {
      if (word === 'crash') throw new Error('crash');
      if (word === 'leave') ctx.stop();
      else trace.push(`${name}${state}`);
      return state + 1;
    },
    stopped: (_, { kind }) => void trace.push(`-${name} ${kind}`),
  });

  const supervised = async (strategy: Strategy) => {
    const trace: string[] = [];
    const children = [...'ab'].map((name) => ({
      name,
      actor: actorChild(kernel, () => worker(trace, name), at(name)),
    }));
    const supervisor = createSupervisor({
      name: 'top',
      strategy,
      intensity: 5,
      backoff: { minMs: 0 },
      clock: world,
      children: children.map(({ name, actor }) => ({ name, child: actor, restart: 'transient' })),
    });
    const life = await supervisor.start();
    const tell = async (name: string, word: Word): Promise<void> => {
      const { actor } = children.find((child) => child.name === name) as (typeof children)[number];
      kernel.tell(actor.ref as Ref<Word>, word);
      dispatcher.drain();
      await quiet();
      dispatcher.drain();
    };
    return { trace, supervisor, life, tell, children };
  };

  it('a crash restarts the actor with fresh state, and its dependants after stopping them', async () => {
    const { trace, tell, life } = await supervised('rest_for_one');
    await tell('a', 'work');
    await tell('a', 'work');
    await tell('a', 'crash');
    await tell('a', 'work');
    expect(trace).to.deep.equal(['+a', '+b', 'a0', 'a1', '-a error', '-b shutdown', '+a', '+b', 'a0']);
    expect(await life.stop(1000)).to.deep.equal({ kind: 'shutdown' });
    expect(trace.slice(-2)).to.deep.equal(['-b shutdown', '-a shutdown']);
  });

  it('an actor that leaves by itself is not restarted if it is transient', async () => {
    const { supervisor, tell, children } = await supervised('one_for_one');
    await tell('a', 'leave');
    expect(supervisor.status()[0]).to.deep.include({ state: 'down', lastReason: { kind: 'normal' } });
    expect(children[0]?.actor.ref).to.equal(undefined);
  });

  it('a reference to the life before is a dead letter of reason stale, and the new life never sees it', async () => {
    const { trace, tell, children } = await supervised('one_for_one');
    const before = children[0]?.actor.ref as Ref<Word>;
    const letters: string[] = [];
    kernel.onDeadLetter(({ reason }) => letters.push(reason));
    await tell('a', 'crash');
    expect(kernel.tell(before, 'work')).to.equal(false);
    dispatcher.drain();
    expect(letters).to.deep.equal(['stale']);
    expect(trace).to.deep.equal(['+a', '+b', '-a error', '+a']);
  });

  it('a throw in start is a failed start with the thrown error as cause', async () => {
    const broken: Behaviour<Word, null> = {
      name: 'broken',
      start() {
        throw new Error('no device');
      },
      handle: (state) => state,
    };
    const supervisor = createSupervisor({
      name: 'top',
      clock: world,
      children: [{ name: 'a', child: actorChild(kernel, () => broken, at('a')) }],
    });
    const failure = await supervisor.start().catch((thrown: unknown) => thrown);
    expect(failure).to.have.property('code', 'SUP_CHILD_START');
    expect(failure).to.have.nested.property('cause.message', 'no device');
  });

  it('hands each new Ref on before the child counts as up', async () => {
    const refs: number[] = [];
    const child = actorChild(
      kernel,
      () => worker([], 'a'),
      at('a'),
      (ref) => refs.push(ref.incarnation),
    );
    const supervisor = createSupervisor({
      name: 'top',
      backoff: { minMs: 0 },
      clock: world,
      children: [{ name: 'a', child }],
    });
    await supervisor.start();
    kernel.tell(child.ref as Ref<Word>, 'crash');
    dispatcher.drain();
    await quiet();
    expect(refs).to.have.length(2);
    expect(child.ref?.incarnation).to.equal(refs[1]);
  });
});

describe('otp: actors on nact under a supervisor', () => {
  it('an actor that crashes again and again never handles two messages at once', async () => {
    const world = virtualWorld();
    const kernel = createKernel({ world });
    let inside = 0;
    let most = 0;
    let lives = 0;
    const child = actorChild<number, null>(
      kernel,
      () => ({
        name: 'fragile',
        start(ctx) {
          lives++;
          for (let message = 0; message < 20; message++) ctx.tell(ctx.self, message);
          return null;
        },
        handle(state, message) {
          most = Math.max(most, ++inside);
          inside--;
          if (message === 10) throw new Error('crash');
          return state;
        },
      }),
      address('node', 'spec', 'fragile'),
    );
    const supervisor = createSupervisor({
      name: 'top',
      intensity: 100,
      backoff: { minMs: 0 },
      clock: world,
      children: [{ name: 'fragile', child }],
    });
    const life = await supervisor.start();
    const reason = await life.exit;
    expect(reason).to.have.nested.property('cause.code', 'SUP_INTENSITY');
    expect([most, lives]).to.deep.equal([1, 101]);
    expect(kernel.counters).to.deep.equal({ delivered: 101 * 11, deadLetters: 101 * 9, crashes: 101 });
    await kernel.shutdown(1000);
  });
});
