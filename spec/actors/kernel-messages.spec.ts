import { expect } from 'chai';
import {
  type Behaviour,
  type Ctx,
  createKernel,
  type DeadLetter,
  type Kernel,
  type Ref,
  type SeededDispatcher,
  seededDispatcher,
  seededRandom,
  type TimerId,
  type VirtualWorld,
  virtualWorld,
} from '../../actors/index.js';
import { address } from '../../transport/index.js';

const at = (name: string) => address('node', 'spec', name);

/** An actor made of functions on its context: what it does with a message is the message. */
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

/** Keeps what it hears. */
const listener = <M>(heard: M[], options: Partial<Behaviour<M, null>> = {}): Behaviour<M, null> => ({
  name: 'listener',
  start: () => null,
  handle(state, message) {
    heard.push(message);
    return state;
  },
  ...options,
});

describe('kernel: messages', () => {
  let world: VirtualWorld;
  let dispatcher: SeededDispatcher;
  let kernel: Kernel;
  let letters: DeadLetter[];

  beforeEach(() => {
    world = virtualWorld();
    dispatcher = seededDispatcher();
    kernel = createKernel({ world, dispatcher });
    letters = [];
    kernel.onDeadLetter((letter) => letters.push(letter));
  });

  it('delivers the messages of one sender in order, under any interleaving of the actors', () => {
    for (let seed = 0; seed < 20; seed++) {
      const own = seededDispatcher(seededRandom(seed));
      const each = createKernel({ world, dispatcher: own });
      const heard: number[][] = [[], [], []];
      const refs = ['a', 'b', 'c'].map((name, index) => each.spawn(listener(heard[index] as number[]), at(name)));
      for (let value = 0; value < 50; value++) for (const ref of refs) each.tell(ref, value);
      own.drain();
      const expected = Array.from({ length: 50 }, (_, value) => value);
      expect(heard).to.deep.equal([expected, expected, expected]);
    }
  });

  it('calls no behaviour inside tell, and never one handler inside another of the same actor', () => {
    const trace: string[] = [];
    const ref = kernel.spawn(doer(), at('a'));
    kernel.tell(ref, (ctx) => {
      trace.push('begin');
      ctx.tell(ctx.self, () => trace.push('second'));
      trace.push('end');
    });
    expect(trace).to.deep.equal([]);
    dispatcher.drain();
    expect(trace).to.deep.equal(['begin', 'end', 'second']);
  });

  it('fails the actor whose handler runs the dispatcher back into it', async () => {
    const ref = kernel.spawn(doer(), at('a'));
    const cell = ref as unknown as { run(batch: number): boolean };
    kernel.tell(ref, () => {
      cell.run(1);
    });
    dispatcher.drain();
    expect(await kernel.exit(ref)).to.have.nested.property('error.code', 'ACT_REENTRANT');
  });

  it('keeps what handle returns as the next state', () => {
    const seen: number[] = [];
    const counter: Behaviour<number, number> = {
      name: 'counter',
      start: () => 100,
      handle(state, add) {
        seen.push(state);
        return state + add;
      },
    };
    const ref = kernel.spawn(counter, at('a'));
    for (const add of [1, 2, 3]) kernel.tell(ref, add);
    dispatcher.drain();
    expect(seen).to.deep.equal([100, 101, 103]);
  });

  it('refuses one message more than the capacity, counts it as a dead letter and goes on', () => {
    const heard: number[] = [];
    const ref = kernel.spawn(listener(heard, { capacity: 3 }), at('a'));
    expect([1, 2, 3, 4].map((value) => kernel.tell(ref, value))).to.deep.equal([true, true, true, false]);
    expect(letters).to.deep.equal([{ to: at('a'), message: 4, reason: 'full' }]);
    expect(kernel.depth(ref)).to.equal(3);
    dispatcher.drain();
    expect(kernel.tell(ref, 5)).to.equal(true);
    dispatcher.drain();
    expect(heard).to.deep.equal([1, 2, 3, 5]);
    expect(kernel.counters).to.deep.equal({ delivered: 4, deadLetters: 1, crashes: 0 });
  });

  it('ends an actor whose mailbox must not lose when it overflows, and gives up what it held as dead letters', async () => {
    const ref = kernel.spawn(listener<number>([], { capacity: 2, overflow: 'crash' }), at('a'));
    for (const value of [1, 2, 3]) kernel.tell(ref, value);
    expect(await kernel.exit(ref)).to.have.nested.property('error.code', 'ACT_MAILBOX_FULL');
    expect(letters.map(({ message, reason }) => [message, reason])).to.deep.equal([
      [3, 'full'],
      [1, 'stopped'],
      [2, 'stopped'],
    ]);
    expect(kernel.counters.crashes).to.equal(1);
  });

  it('makes a dead letter of a message to an ended actor, and says stale if its address has a new incarnation', async () => {
    const first = kernel.spawn(listener<number>([]), at('a'));
    await kernel.kill(first);
    expect(kernel.tell(first, 1)).to.equal(false);
    const heard: number[] = [];
    const second = kernel.spawn(listener(heard), at('a'));
    expect(second.incarnation).not.to.equal(first.incarnation);
    expect(kernel.tell(first, 2)).to.equal(false);
    kernel.tell(second, 3);
    dispatcher.drain();
    expect(heard).to.deep.equal([3]);
    expect(letters.map(({ message, reason }) => [message, reason])).to.deep.equal([
      [1, 'stopped'],
      [2, 'stale'],
    ]);
  });

  it('survives a dead letter listener that throws, and reports it', () => {
    kernel.onDeadLetter(() => {
      throw new Error('listener');
    });
    const ref = kernel.spawn(listener<number>([], { capacity: 0 }), at('a'));
    expect(kernel.tell(ref, 1)).to.equal(false);
    expect(letters).to.have.length(1);
    expect(world.logged.map(({ message }) => message)).to.deep.equal(['dead letter listener failed']);
  });

  describe('ask', () => {
    interface Question {
      readonly value: number;
      readonly replyTo: Ref<number>;
    }
    const doubler: Behaviour<Question, null> = {
      name: 'doubler',
      start: () => null,
      handle(state, { value, replyTo }, ctx) {
        ctx.tell(replyTo, value * 2);
        return state;
      },
    };
    const asker = (heard: string[], to: Ref<Question>): Behaviour<string, null> => ({
      name: 'asker',
      start(ctx) {
        ctx.ask<Question, number>(
          to,
          (replyTo) => ({ value: 21, replyTo }),
          100,
          (reply) => `answer ${reply}`,
          () => 'late',
        );
        return null;
      },
      handle(state, message) {
        heard.push(message);
        return state;
      },
    });
    const keeper = (kept: Question[]) => listener<Question>(kept);

    it('brings the answer as the asker’s own message and never the late one', () => {
      const heard: string[] = [];
      kernel.spawn(asker(heard, kernel.spawn(doubler, at('b'))), at('a'));
      dispatcher.drain();
      world.advance(1000, dispatcher.drain);
      expect(heard).to.deep.equal(['answer 42']);
      expect(world.timers).to.equal(0);
    });

    it('brings late once at the deadline; answers after it are dead letters', () => {
      const heard: string[] = [];
      const kept: Question[] = [];
      const to = kernel.spawn(keeper(kept), at('b'));
      kernel.spawn(asker(heard, to), at('a'));
      dispatcher.drain();
      world.advance(99, dispatcher.drain);
      expect(heard).to.deep.equal([]);
      world.advance(1, dispatcher.drain);
      expect(heard).to.deep.equal(['late']);
      const { replyTo } = kept[0] as Question;
      expect(kernel.tell(replyTo, 1)).to.equal(false);
      dispatcher.drain();
      expect(heard).to.deep.equal(['late']);
      expect(letters.map(({ reason }) => reason)).to.deep.equal(['stale']);
    });

    it('takes the first of two answers', () => {
      const heard: string[] = [];
      const kept: Question[] = [];
      kernel.spawn(asker(heard, kernel.spawn(keeper(kept), at('b'))), at('a'));
      dispatcher.drain();
      const { replyTo } = kept[0] as Question;
      expect([kernel.tell(replyTo, 1), kernel.tell(replyTo, 2)]).to.deep.equal([true, false]);
      dispatcher.drain();
      expect(heard).to.deep.equal(['answer 1']);
    });

    it('brings the answer even when the asker’s mailbox is full', () => {
      const heard: string[] = [];
      const to = kernel.spawn(doubler, at('b'));
      const full = kernel.spawn({ ...asker(heard, to), capacity: 1 }, at('a'));
      kernel.tell(full, 'other');
      dispatcher.drain();
      expect(heard).to.have.members(['other', 'answer 42']);
    });

    it('ends the asker, not the answerer, when the asker cannot take the answer', async () => {
      const to = kernel.spawn(doubler, at('b'));
      const ref = kernel.spawn(doer(), at('a'));
      kernel.tell(ref, (ctx) =>
        ctx.ask<Question, number>(
          to,
          (replyTo) => ({ value: 1, replyTo }),
          100,
          () => {
            throw new Error('cannot');
          },
          () => () => {},
        ),
      );
      dispatcher.drain();
      expect(await kernel.exit(ref)).to.have.nested.property('error.message', 'cannot');
      expect(kernel.ended(to)).to.equal(undefined);
    });

    it('from outside resolves with the answer, rejects at the deadline, and at once if nobody can hear', async () => {
      const to = kernel.spawn(doubler, at('b'));
      const question = (replyTo: Ref<number>): Question => ({ value: 4, replyTo });
      const answered = kernel.ask(to, question, 100);
      dispatcher.drain();
      expect(await answered).to.equal(8);

      const silent = kernel.spawn(keeper([]), at('c'));
      const late = kernel.ask(silent, question, 100).catch((error: unknown) => error);
      world.advance(100);
      expect(await late).to.have.property('code', 'ACT_TIMEOUT');

      await kernel.kill(to);
      const refused = await kernel.ask(to, question, 100).catch((error: unknown) => error);
      expect(refused).to.have.property('code', 'ACT_UNDELIVERED');
      expect(world.timers).to.equal(0);
    });
  });

  describe('timers', () => {
    it('bring their message at their time, in order, unless cancelled', () => {
      const heard: string[] = [];
      const ref = kernel.spawn(
        listener<string>(heard, {
          start(ctx) {
            ctx.after(20, 'b');
            ctx.after(10, 'a');
            ctx.cancelTimer(ctx.after(15, 'never'));
            return null;
          },
        }),
        at('a'),
      );
      world.advance(9, dispatcher.drain);
      expect(heard).to.deep.equal([]);
      world.advance(11, dispatcher.drain);
      expect(heard).to.deep.equal(['a', 'b']);
      expect(kernel.depth(ref)).to.equal(0);
    });

    it('do not arrive when cancelled after they fired but before they were handled', () => {
      let fired = false;
      let timer: TimerId | undefined;
      const ref = kernel.spawn(doer(), at('a'));
      kernel.tell(ref, (ctx) => {
        timer = ctx.after(10, () => {
          fired = true;
        });
      });
      dispatcher.drain();
      kernel.tell(ref, (ctx) => ctx.cancelTimer(timer as TimerId));
      world.advance(10);
      expect(kernel.depth(ref)).to.equal(2);
      dispatcher.drain();
      expect(fired).to.equal(false);
    });

    it('are gone when the actor ends, however it ends', async () => {
      const ends: ((ref: Ref<Act>) => void)[] = [
        (ref) => void kernel.kill(ref),
        (ref) => void kernel.stop(ref, 1000),
        (ref) => kernel.tell(ref, (ctx) => ctx.stop()),
        (ref) =>
          kernel.tell(ref, () => {
            throw new Error('crash');
          }),
      ];
      for (const end of ends) {
        const ref = kernel.spawn(doer(), at('a'));
        kernel.tell(ref, (ctx) => {
          ctx.after(10, () => {});
          ctx.after(20, () => {});
        });
        dispatcher.drain();
        expect(world.timers).to.equal(2);
        end(ref);
        dispatcher.drain();
        await kernel.exit(ref);
        expect(world.timers).to.equal(0);
      }
      expect(letters).to.deep.equal([]);
    });

    it('fail an actor that has too many of them', async () => {
      const ref = kernel.spawn(doer(), at('a'));
      kernel.tell(ref, (ctx) => {
        for (;;) ctx.after(1, () => {});
      });
      dispatcher.drain();
      expect(await kernel.exit(ref)).to.have.nested.property('error.code', 'ACT_OWED_LIMIT');
      expect(world.timers).to.equal(0);
    });
  });
});
