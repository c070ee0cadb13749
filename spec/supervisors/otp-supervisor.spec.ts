import { expect } from 'chai';
import { type ExitReason, type VirtualWorld, virtualWorld } from '../../actors/index.js';
import {
  type ChildSpec,
  type ChildStatus,
  createSupervisor,
  type RestartType,
  type Running,
  type Strategy,
  type Supervisor,
  type SupervisorOptions,
} from '../../supervisors/otp/index.js';
import { error, type Puppet, puppet, quiet } from './otp-children.js';

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'resolved',
    (thrown: { code?: string }) => thrown.code ?? thrown,
  );

describe('otp: supervisor', () => {
  let world: VirtualWorld;
  let trace: string[];
  let puppets: Record<string, Puppet>;
  let supervisor: Supervisor;
  let life: Running;

  const steps = (): string => trace.splice(0).join(' ');
  const p = (name: string): Puppet => puppets[name] as Puppet;
  const at = (name: string): ChildStatus => supervisor.status().find((child) => child.name === name) as ChildStatus;
  const states = (): string =>
    supervisor
      .status()
      .map(({ name, state }) => `${name}:${state}`)
      .join(' ');

  const make = (
    names: string,
    options: Omit<Partial<SupervisorOptions>, 'children'> = {},
    child: (name: string) => Partial<ChildSpec> = () => ({}),
  ): void => {
    world = virtualWorld();
    trace = [];
    puppets = Object.fromEntries([...names].map((name) => [name, puppet(name, trace)]));
    supervisor = createSupervisor({
      name: 'top',
      clock: world,
      intensity: 10,
      backoff: { minMs: 0 },
      ...options,
      children: [...names].map((name) => ({ name, child: p(name), ...child(name) })),
    });
  };
  const begin = async (...options: Parameters<typeof make>): Promise<void> => {
    make(...options);
    life = await supervisor.start();
  };
  const ends = async (name: string, reason: ExitReason = error('crash')): Promise<void> => {
    p(name).end(reason);
    await quiet();
  };

  describe('start and stop', () => {
    it('starts left to right, each after the one before is up, and stops right to left', async () => {
      make('abc');
      p('b').starts = 'hold';
      const started = supervisor.start();
      await quiet();
      expect(states()).to.equal('a:up b:starting c:down');
      p('b').release();
      life = await started;
      expect(steps()).to.equal('+a +b +c');
      expect(await life.stop(1000)).to.deep.equal({ kind: 'shutdown' });
      expect(steps()).to.equal('-c -b -a');
      expect(states()).to.equal('a:down b:down c:down');
      expect(world.timers).to.equal(0);
    });

    it('when a first start fails stops those already started, and rejects with the child’s own error as cause', async () => {
      make('abc');
      p('c').starts = 'fail';
      const failure = await supervisor.start().catch((thrown: unknown) => thrown);
      expect(failure).to.have.property('code', 'SUP_CHILD_START');
      expect(failure).to.have.nested.property('cause.message', 'c cannot');
      expect(steps()).to.equal('+a +b ?c -b -a');
      p('c').starts = 'ok';
      await supervisor.start();
      expect(states()).to.equal('a:up b:up c:up');
    });

    it('when its start is aborted gives up the child that is starting and stops the others', async () => {
      make('abc');
      p('b').starts = 'hold';
      const abort = new AbortController();
      const started = codeOf(supervisor.start(abort.signal));
      await quiet();
      abort.abort();
      expect(await started).to.equal('SUP_ABORTED');
      expect(steps()).to.equal('+a ~b -a');
      expect(world.timers).to.equal(0);
    });

    it('kills a child that begins to live although its start was aborted', async () => {
      make('ab');
      p('b').starts = 'deaf';
      const abort = new AbortController();
      const started = codeOf(supervisor.start(abort.signal));
      await quiet();
      abort.abort();
      await quiet();
      p('b').release();
      expect(await started).to.equal('SUP_ABORTED');
      expect(steps()).to.equal('+a +b !b -a');
    });

    it('fails a start that takes longer than its deadline, and one that cannot even be aborted', async () => {
      for (const starts of ['hold', 'deaf'] as const) {
        make('ab', { graceMs: 100 }, () => ({ startDeadlineMs: 1000 }));
        p('b').starts = starts;
        const started = supervisor.start().catch((thrown: unknown) => thrown);
        await quiet();
        world.advance(1000);
        await quiet();
        world.advance(100);
        const code = starts === 'hold' ? 'SUP_CHILD_SLOW' : 'SUP_CHILD_HUNG';
        expect(await started).to.have.nested.property('cause.code', code);
        expect(p('a').live).to.equal(false);
        // What did not hear the abort may still begin a life; it is not left alone with it.
        if (starts === 'deaf') p('b').release();
        await quiet();
        expect(p('b').live).to.equal(false);
      }
    });

    it('deals with a child that ends while later siblings still start, once they are up', async () => {
      make('ab');
      p('b').starts = 'hold';
      const started = supervisor.start();
      await quiet();
      await ends('a');
      expect(steps()).to.equal('+a');
      p('b').starts = 'ok';
      p('b').release();
      await started;
      await quiet();
      expect(steps()).to.equal('+b +a');
    });

    it('refuses a second start while it runs, and starts afresh after its end', async () => {
      await begin('a');
      expect(await codeOf(supervisor.start())).to.equal('SUP_RUNNING');
      await life.stop(1000);
      const next = await supervisor.start();
      expect(next.incarnation).not.to.equal(life.incarnation);
    });
  });

  describe('shutdown of a child', () => {
    it('brutal kills at once', async () => {
      await begin('a', {}, () => ({ shutdown: 'brutal' }));
      await life.stop(1000);
      expect(steps()).to.equal('+a !a');
    });

    it('in milliseconds asks first and kills at the deadline, not before', async () => {
      await begin('ab', {}, () => ({ shutdown: 200 }));
      p('b').stops = 'ignore';
      const stopped = life.stop(1000);
      await quiet();
      expect(states()).to.equal('a:up b:draining');
      world.advance(199);
      await quiet();
      expect(steps()).to.equal('+a +b -b');
      world.advance(1);
      expect(await stopped).to.deep.equal({ kind: 'shutdown' });
      expect(steps()).to.equal('!b -a');
    });

    it('infinity waits, but not beyond the deadline of the whole stop', async () => {
      await begin('ab', {}, () => ({ shutdown: 'infinity' }));
      p('b').stops = 'ignore';
      const stopped = life.stop(60_000);
      await quiet();
      world.advance(59_999);
      await quiet();
      expect(states()).to.equal('a:up b:draining');
      world.advance(1);
      expect(await stopped).to.deep.equal({ kind: 'killed' });
      expect(steps()).to.equal('+a +b -b !b !a');
    });

    it('is waited for at most the grace time after the kill', async () => {
      await begin('a', { graceMs: 500 });
      p('a').stops = 'immortal';
      const exit = life.exit;
      life.kill();
      await quiet();
      world.advance(500);
      expect(await exit).to.deep.equal({ kind: 'killed' });
      expect(at('a').lastReason).to.have.nested.property('error.code', 'SUP_CHILD_HUNG');
    });

    it('kill ends all children at once', async () => {
      await begin('abc', {}, () => ({ shutdown: 'infinity' }));
      life.kill();
      expect(await life.exit).to.deep.equal({ kind: 'killed' });
      expect(steps()).to.equal('+a +b +c !c !b !a');
    });
  });

  describe('strategies', () => {
    const table: readonly (readonly [Strategy, string, string])[] = [
      ['one_for_one', 'b', '+b'],
      ['dynamic', 'b', '+b'],
      ['one_for_all', 'b', '-d -c -a +a +b +c +d'],
      ['rest_for_one', 'b', '-d -c +b +c +d'],
      ['rest_for_one', 'd', '+d'],
      ['rest_for_one', 'a', '-d -c -b +a +b +c +d'],
    ];
    for (const [strategy, failed, expected] of table) {
      it(`${strategy}: the crash of ${failed} of abcd leads to ‹${expected}›`, async () => {
        await begin('abcd', { strategy });
        steps();
        await ends(failed);
        expect(steps()).to.equal(expected);
        expect(states()).to.equal('a:up b:up c:up d:up');
        expect(at(failed)).to.include({ restarts: 1, incarnation: `${failed}-2` });
      });
    }

    it('a temporary sibling stopped by strategy is forgotten', async () => {
      await begin('abc', { strategy: 'one_for_all' }, (name) => (name === 'c' ? { restart: 'temporary' } : {}));
      steps();
      await ends('a');
      expect(steps()).to.equal('-c -b +a +b');
      expect(states()).to.equal('a:up b:up');
    });

    it('a transient sibling that had ended normally comes back with the others', async () => {
      await begin('ab', { strategy: 'one_for_all' }, (name) => (name === 'b' ? { restart: 'transient' } : {}));
      await ends('b', { kind: 'normal' });
      expect(states()).to.equal('a:up b:down');
      steps();
      await ends('a');
      expect(steps()).to.equal('+a +b');
    });

    it('a sibling that fails to start during a restart counts again and the restart begins anew from it', async () => {
      await begin('abc', { strategy: 'rest_for_one', backoff: { minMs: 10, jitter: 0 } });
      steps();
      p('b').starts = 'fail';
      await ends('a');
      world.advance(10);
      await quiet();
      expect(steps()).to.equal('-c -b +a ?b');
      p('b').starts = 'ok';
      world.advance(10);
      await quiet();
      expect(steps()).to.equal('+b +c');
      expect(at('a').restarts).to.equal(1);
    });

    it('a failure during a restart widens it: nothing started meanwhile survives that should not', async () => {
      await begin('abc', { strategy: 'rest_for_one' });
      steps();
      p('c').starts = 'hold';
      await ends('b');
      expect(steps()).to.equal('-c +b');
      p('c').starts = 'ok';
      await ends('a');
      expect(steps()).to.equal('~c -b +a +b +c');
    });

    it('one_for_one: a child in its back-off or slow to start keeps no sibling waiting', async () => {
      await begin('ab', { backoff: { minMs: 1000, jitter: 0 } });
      steps();
      await ends('a');
      world.advance(500);
      await ends('b');
      world.advance(500);
      await quiet();
      expect(states()).to.equal('a:up b:restarting');
      world.advance(500);
      await quiet();
      expect(states()).to.equal('a:up b:up');
    });
  });

  describe('restart types', () => {
    const reasons: readonly ExitReason[] = [
      { kind: 'normal' },
      { kind: 'shutdown' },
      { kind: 'killed' },
      error('crash'),
    ];
    const expected: Readonly<Record<RestartType, readonly string[]>> = {
      permanent: ['up', 'up', 'up', 'up'],
      transient: ['down', 'down', 'up', 'up'],
      temporary: ['forgotten', 'forgotten', 'forgotten', 'forgotten'],
    };
    for (const restart of ['permanent', 'transient', 'temporary'] as const) {
      it(`${restart}: is ${expected[restart].join(', ')} after ${reasons.map(({ kind }) => kind).join(', ')}`, async () => {
        const seen: string[] = [];
        for (const reason of reasons) {
          await begin('a', {}, () => ({ restart }));
          await ends('a', reason);
          seen.push(supervisor.status()[0]?.state ?? 'forgotten');
        }
        expect(seen).to.deep.equal(expected[restart]);
      });
    }
  });

  describe('intensity and back-off', () => {
    it('gives up at one restart too many: stops the children, ends as shutdown with the cause', async () => {
      await begin('abc', { intensity: 2, periodMs: 1000 });
      await ends('b');
      await ends('b');
      expect(states()).to.equal('a:up b:up c:up');
      steps();
      await ends('b', error('third'));
      const reason = await life.exit;
      expect(reason.kind).to.equal('shutdown');
      expect(reason).to.have.nested.property('cause.code', 'SUP_INTENSITY');
      expect(reason).to.have.nested.property('cause.cause.message', 'third');
      expect(steps()).to.equal('-c -a');
    });

    it('forgets restarts older than the period', async () => {
      await begin('a', { intensity: 1, periodMs: 1000 });
      for (let round = 0; round < 5; round++) {
        await ends('a');
        world.advance(1001);
      }
      expect(at('a')).to.include({ state: 'up', restarts: 5 });
    });

    it('counts one failure once, however many siblings restart', async () => {
      await begin('abcd', { strategy: 'one_for_all', intensity: 1 });
      await ends('a');
      expect(states()).to.equal('a:up b:up c:up d:up');
    });

    it('counts each start that fails', async () => {
      await begin('a', { intensity: 3, periodMs: 1000 });
      p('a').starts = 'fail';
      await ends('a');
      expect(await life.exit).to.have.nested.property('cause.code', 'SUP_INTENSITY');
      expect(steps()).to.equal('+a ?a ?a ?a');
    });

    it('waits longer after each failure in a row, and as before after a quiet life', async () => {
      await begin('a', { backoff: { minMs: 100, maxMs: 1000, jitter: 0, quietMs: 5000 } });
      const waited = async (): Promise<number> => {
        await ends('a');
        const from = world.now();
        expect(at('a').state).to.equal('restarting');
        world.fireNext();
        await quiet();
        expect(at('a').state).to.equal('up');
        return world.now() - from;
      };
      expect([await waited(), await waited(), await waited()]).to.deep.equal([100, 200, 400]);
      world.advance(5000);
      expect(await waited()).to.equal(100);
    });

    it('waits as before after a shorter life, for a child that says so', async () => {
      await begin('a', { backoff: { minMs: 100, maxMs: 1000, jitter: 0, quietMs: 5000 } }, () => ({ quietMs: 500 }));
      for (const lived of [499, 500, 600]) {
        world.advance(lived);
        await ends('a');
        const from = world.now();
        world.fireNext();
        await quiet();
        expect(world.now() - from, `after ${lived} ms`).to.equal(100);
      }
      await ends('a');
      const from = world.now();
      world.fireNext();
      await quiet();
      expect(world.now() - from, 'a life of no time').to.equal(200);
    });

    it('stops at once during a back-off, and starts nothing after it', async () => {
      await begin('ab', { backoff: { minMs: 1000 } });
      steps();
      await ends('a');
      await life.stop(100);
      world.advance(100_000);
      await quiet();
      expect(steps()).to.equal('-b');
      expect(world.timers).to.equal(0);
    });

    it('gives up rather than start a life beside one that will not end', async () => {
      await begin('ab', { strategy: 'one_for_all', graceMs: 100 }, () => ({ shutdown: 'brutal' }));
      p('b').stops = 'immortal';
      await ends('a');
      world.advance(100);
      await quiet();
      expect(await life.exit).to.have.nested.property('cause.code', 'SUP_CHILD_HUNG');
      expect(p('b').lives).to.equal(1);
    });
  });

  describe('significant children', () => {
    const significant = (names: string) => (name: string) =>
      ({ restart: 'transient', significant: names.includes(name) }) as const;

    it('any_significant: the first that ends by itself ends the supervisor', async () => {
      await begin('abc', { autoShutdown: 'any_significant' }, significant('ab'));
      await ends('c', { kind: 'normal' });
      expect(states()).to.equal('a:up b:up c:down');
      await ends('a', { kind: 'normal' });
      expect(await life.exit).to.deep.equal({ kind: 'shutdown' });
      expect(p('b').live).to.equal(false);
    });

    it('all_significant: the last that ends by itself ends the supervisor', async () => {
      await begin('abc', { autoShutdown: 'all_significant' }, significant('ab'));
      await ends('a', { kind: 'normal' });
      await ends('b');
      expect(states()).to.equal('a:down b:up c:up');
      await ends('b', { kind: 'shutdown' });
      expect(await life.exit).to.deep.equal({ kind: 'shutdown' });
    });

    it('an end that was asked for does not count', async () => {
      await begin('ab', { autoShutdown: 'any_significant' }, significant('a'));
      await supervisor.terminateChild('a');
      await quiet();
      expect(states()).to.equal('a:down b:up');
    });
  });

  describe('children that come and go', () => {
    it('a child is started after the others and ends with them, all at once', async () => {
      await begin('', { strategy: 'dynamic' });
      for (const name of ['x', 'y']) {
        puppets[name] = puppet(name, trace);
        const running = await supervisor.startChild({ name, child: p(name) });
        expect(running.incarnation).to.equal(`${name}-1`);
      }
      p('x').stops = 'ignore';
      p('y').stops = 'ignore';
      const stopped = life.stop(60_000);
      await quiet();
      expect(steps()).to.equal('+x +y -x -y');
      world.advance(5000);
      await stopped;
    });

    it('a child that is being added shares no fate with its siblings until it is up', async () => {
      await begin('a', { strategy: 'one_for_all' });
      puppets.x = puppet('x', trace);
      p('x').starts = 'hold';
      const added = supervisor.startChild({ name: 'x', child: p('x') });
      await quiet();
      await ends('a');
      expect(states()).to.equal('a:up x:starting');
      p('x').release();
      await added;
      expect(steps()).to.equal('+a +a +x');
      await ends('a');
      expect(states()).to.equal('a:up x:restarting');
      p('x').release();
      await quiet();
      expect(steps()).to.equal('-x +a +x');
    });

    it('a child that cannot start is not added', async () => {
      await begin('');
      const child = puppet('x');
      child.starts = 'fail';
      expect(await codeOf(supervisor.startChild({ name: 'x', child }))).to.equal('SUP_CHILD_START');
      expect(supervisor.status()).to.deep.equal([]);
    });

    it('the limit of children and a taken name are refused', async () => {
      await begin('ab', { maxChildren: 3 });
      const add = (name: string) => codeOf(supervisor.startChild({ name, child: puppet(name) }));
      expect([await add('b'), await add('c'), await add('d')]).to.deep.equal([
        'SUP_CHILD_EXISTS',
        'resolved',
        'SUP_TOO_MANY_CHILDREN',
      ]);
    });

    it('a terminated child stays down until it is restarted or deleted', async () => {
      await begin('ab');
      await supervisor.terminateChild('a');
      await quiet();
      expect(states()).to.equal('a:down b:up');
      expect(() => supervisor.deleteChild('b'))
        .to.throw()
        .with.property('code', 'SUP_CHILD_EXISTS');
      expect((await supervisor.restartChild('a')).incarnation).to.equal('a-2');
      await supervisor.terminateChild('a');
      supervisor.deleteChild('a');
      expect(states()).to.equal('b:up');
      expect(await codeOf(supervisor.terminateChild('a'))).to.equal('SUP_NO_CHILD');
    });

    it('a child that is recycled drains and comes back at once, alone, and that is no failure', async () => {
      await begin('abc', { strategy: 'rest_for_one', intensity: 0, backoff: { minMs: 1000 } });
      steps();
      expect((await supervisor.recycleChild('b')).incarnation).to.equal('b-2');
      expect(steps()).to.equal('-b +b');
      expect(at('b')).to.include({ state: 'up', restarts: 1, failures: 0 });
    });

    it('a recycled child that cannot start is tried again like any other that failed', async () => {
      await begin('ab', { backoff: { minMs: 100, jitter: 0 } });
      p('a').failures = 1;
      expect(await codeOf(supervisor.recycleChild('a'))).to.equal('SUP_CHILD_START');
      expect(at('a')).to.include({ state: 'restarting', failures: 1, retryAt: world.now() + 100 });
      expect(await codeOf(supervisor.recycleChild('a'))).to.equal('SUP_CHILD_EXISTS');
      world.advance(100);
      await quiet();
      expect(states()).to.equal('a:up b:up');
    });

    it('a failure among its siblings starts no second life of a child that is being recycled', async () => {
      await begin('abc', { strategy: 'one_for_all' });
      p('b').starts = 'hold';
      const recycled = supervisor.recycleChild('b');
      await quiet();
      await ends('a');
      p('b').release();
      expect((await recycled).incarnation).to.equal('b-2');
      await quiet();
      expect([states(), p('b').twins]).to.deep.equal(['a:up b:up c:up', 0]);
    });

    it('a child terminated while it is recycled stays down, and a supervisor that stops starts it no more', async () => {
      await begin('ab', { intensity: 0 });
      p('a').starts = 'hold';
      const recycled = codeOf(supervisor.recycleChild('a'));
      await quiet();
      await supervisor.terminateChild('a');
      expect([await recycled, states()]).to.deep.equal(['SUP_ABORTED', 'a:down b:up']);
      p('b').starts = 'hold';
      const other = codeOf(supervisor.recycleChild('b'));
      await quiet();
      await life.stop(1000);
      expect([await other, states()]).to.deep.equal(['SUP_ABORTED', 'a:down b:down']);
    });

    it('a child terminated during its back-off or its start does not come back', async () => {
      await begin('a', { backoff: { minMs: 100 } });
      await ends('a');
      await supervisor.terminateChild('a');
      world.advance(10_000);
      await quiet();
      expect(at('a')).to.include({ state: 'down', restarts: 0 });

      await begin('a');
      p('a').starts = 'hold';
      await ends('a');
      expect(at('a').state).to.equal('restarting');
      await supervisor.terminateChild('a');
      expect(at('a').state).to.equal('down');
    });

    it('children added to one life are not in the next', async () => {
      await begin('a');
      await supervisor.startChild({ name: 'x', child: puppet('x') });
      await life.stop(1000);
      await supervisor.start();
      expect(states()).to.equal('a:up');
    });
  });

  describe('nesting', () => {
    it('an inner supervisor that gives up is restarted by the outer one, with its children', async () => {
      make('abc');
      const inner = createSupervisor({
        name: 'inner',
        clock: world,
        intensity: 0,
        children: [...'bc'].map((name) => ({ name, child: p(name) })),
      });
      const outer = createSupervisor({
        name: 'outer',
        clock: world,
        backoff: { minMs: 0 },
        children: [
          { name: 'a', child: p('a') },
          { name: 'inner', child: inner, kind: 'supervisor' },
        ],
      });
      const top = await outer.start();
      steps();
      await ends('b');
      expect(steps()).to.equal('-c +b +c');
      expect(outer.status()[1]).to.include({ state: 'up', restarts: 1, incarnation: 'inner-2' });
      await top.stop(1000);
      expect(steps()).to.equal('-c -b -a');
      expect(inner.status().every(({ state }) => state === 'down')).to.equal(true);
    });
  });

  describe('what people see', () => {
    it('shows each state, incarnation, count and reason, and tells each change as it happens', async () => {
      make('a', { backoff: { minMs: 100, jitter: 0 } });
      const seen: string[] = [];
      supervisor.onChange(({ state, incarnation, restarts }) => seen.push(`${state} ${incarnation} ${restarts}`));
      supervisor.onChange(() => {
        throw new Error('listener');
      });
      expect(states()).to.equal('a:down');
      life = await supervisor.start();
      world.advance(50);
      await ends('a', error('why'));
      expect(at('a')).to.deep.include({ state: 'restarting', since: 50, incarnation: 'a-1' });
      expect(at('a').lastReason).to.have.nested.property('error.message', 'why');
      world.advance(100);
      await quiet();
      await life.stop(1000);
      expect(seen).to.deep.equal([
        'starting  0',
        'up a-1 0',
        'restarting a-1 0',
        'up a-2 1',
        'draining a-2 1',
        'down a-2 1',
      ]);
    });
  });

  describe('options', () => {
    const child = puppet('a');
    const wrong: readonly (readonly [string, Omit<SupervisorOptions, 'name'>])[] = [
      [
        'two children are called a',
        {
          children: [
            { name: 'a', child },
            { name: 'a', child },
          ],
        },
      ],
      ['intensity', { intensity: -1 }],
      ['periodMs', { periodMs: 0 }],
      ['backoff.minMs', { backoff: { minMs: 2, maxMs: 1 } }],
      ['strategy', { strategy: 'all_for_one' as Strategy }],
      [
        'significant with restart permanent',
        { autoShutdown: 'any_significant', children: [{ name: 'a', child, significant: true }] },
      ],
      [
        'significant with autoShutdown never',
        { children: [{ name: 'a', child, restart: 'transient', significant: true }] },
      ],
      ['shutdown', { children: [{ name: 'a', child, shutdown: -1 }] }],
    ];
    for (const [text, options] of wrong) {
      it(`that make no sense are refused by name: ${text}`, () => {
        expect(() => createSupervisor({ name: 'top', ...options }))
          .to.throw(text)
          .with.property('code', 'SUP_SPEC');
      });
    }
  });
});
