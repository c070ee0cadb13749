import { expect } from 'chai';
import fc from 'fast-check';
import { type ExitReason, virtualWorld } from '../../actors/index.js';
import { type ChildSpec, createSupervisor, type RestartType, type Supervisor } from '../../supervisors/otp/index.js';
import { type Puppet, puppet, quiet } from './otp-children.js';
import { type LeafShape, periodMs, type Shape, Tree, type TreeShape } from './otp-model.js';

type Event =
  | { readonly does: 'end'; readonly pick: number; readonly kind: ExitReason['kind'] }
  | { readonly does: 'failNext'; readonly pick: number; readonly starts: number }
  | { readonly does: 'wait'; readonly ms: number }
  | { readonly does: 'add'; readonly pick: number; readonly restart: RestartType };

const restart = fc.constantFrom<RestartType>('permanent', 'permanent', 'transient', 'temporary');
const strategy = fc.constantFrom<TreeShape['strategy']>('one_for_one', 'one_for_all', 'rest_for_one');

/** Trees of at most three levels; names are given afterwards. */
const significant = fc.boolean();
const leafShape: fc.Arbitrary<Shape> = fc.record({ leaf: fc.constant(''), restart, significant });
const treeOf = (child: fc.Arbitrary<Shape>, how: fc.Arbitrary<TreeShape['strategy']> = strategy) =>
  fc.record({
    tree: fc.constant(''),
    restart,
    significant,
    strategy: how,
    auto: fc.constantFrom<TreeShape['auto']>('never', 'any_significant', 'all_significant'),
    intensity: fc.nat(3),
    children: fc.array(child, { minLength: 1, maxLength: 3 }),
  });
/** Its children stop all at once: only of leaves is the order of that a fixed one. */
const dynamicShape = treeOf(leafShape, fc.constant('dynamic'));
const rootShape = fc.oneof(
  {
    weight: 3,
    arbitrary: treeOf(fc.oneof(leafShape, dynamicShape, treeOf(fc.oneof(leafShape, leafShape, treeOf(leafShape))))),
  },
  { weight: 1, arbitrary: dynamicShape },
);

const event: fc.Arbitrary<Event> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      does: fc.constant('end' as const),
      pick: fc.nat(100),
      kind: fc.constantFrom<ExitReason['kind']>('error', 'error', 'error', 'killed', 'normal', 'shutdown'),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      does: fc.constant('failNext' as const),
      pick: fc.nat(100),
      starts: fc.integer({ min: 1, max: 3 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ does: fc.constant('wait' as const), ms: fc.nat(2 * periodMs) }) },
  { weight: 1, arbitrary: fc.record({ does: fc.constant('add' as const), pick: fc.nat(100), restart }) },
);

/** With names, and significant only where that makes sense. */
function named(shape: Shape, path: string, auto: TreeShape['auto'] = 'never'): Shape {
  const significant = shape.significant && shape.restart !== 'permanent' && auto !== 'never';
  if ('leaf' in shape) return { ...shape, significant, leaf: path };
  const children = shape.children.map((child, index) => named(child, `${path}${index}`, shape.auto));
  return { ...shape, significant, tree: path, children };
}

const leaves = (shape: Shape): readonly LeafShape[] => ('leaf' in shape ? [shape] : shape.children.flatMap(leaves));

const fateOf = ({ restart, significant }: Shape) => ({ restart, significant });

const reason = (kind: ExitReason['kind']): ExitReason =>
  kind === 'error' ? { kind, error: new Error('crash') } : { kind };

describe('otp: any tree under any failures', function () {
  this.timeout(60_000);

  it('starts, stops, restarts and escalates in exactly the order the sequential model does', async () => {
    await fc.assert(
      fc.asyncProperty(rootShape, fc.array(event, { maxLength: 12 }), async (anonymous, events) => {
        const root = named(anonymous, 'r') as TreeShape;
        const names = leaves(root).map(({ leaf }) => leaf);
        const world = virtualWorld();
        const trace: string[] = [];
        const puppets = new Map<string, Puppet>(names.map((name) => [name, puppet(name, trace)]));

        const supervisors = new Map<string, Supervisor>();
        const supervise = (shape: TreeShape): Supervisor => {
          const made = createSupervisor({
            name: shape.tree,
            strategy: shape.strategy,
            autoShutdown: shape.auto,
            intensity: shape.intensity,
            periodMs,
            backoff: { minMs: 0, maxMs: 0 },
            clock: world,
            children: shape.children.map(
              (child): ChildSpec =>
                'leaf' in child
                  ? { ...fateOf(child), name: child.leaf, child: puppets.get(child.leaf) as Puppet }
                  : { ...fateOf(child), name: child.tree, child: supervise(child), kind: 'supervisor' },
            ),
          });
          supervisors.set(shape.tree, made);
          return made;
        };

        const clock = { now: 0 };
        const expected: string[] = [];
        const model = new Tree(root, expected, clock);
        model.start();
        const life = await supervise(root).start();
        let over = false;
        void life.exit.then(() => {
          over = true;
        });

        for (const each of events) {
          if (each.does === 'wait') {
            clock.now += each.ms;
            world.advance(each.ms);
          } else if (each.does === 'add') {
            const tree = model.trees[each.pick % model.trees.length];
            if (tree === undefined) continue;
            const leaf = `+${names.length}`;
            names.push(leaf);
            const child = puppet(leaf, trace);
            puppets.set(leaf, child);
            tree.add({ leaf, restart: each.restart, significant: false });
            await supervisors.get(tree.shape.tree)?.startChild({ name: leaf, child, restart: each.restart });
          } else {
            const name = names[each.pick % names.length] as string;
            const leaf = model.find(name);
            const real = puppets.get(name) as Puppet;
            // It was added to a life that is over.
            if (leaf === undefined) {
              expect(real.live).to.equal(false);
              continue;
            }
            if (each.does === 'failNext') {
              leaf.failures = each.starts;
              real.failures = each.starts;
            } else if (leaf.live) {
              leaf.parent.ended(leaf, each.kind);
              real.end(reason(each.kind));
            }
          }
          await quiet();
          expect(trace.join(' ')).to.equal(expected.join(' '));
          expect(over).to.equal(!model.live);
        }

        life.kill();
        await life.exit;
        expect([...puppets.values()].filter(({ live }) => live)).to.deep.equal([]);
        expect(world.timers).to.equal(0);
      }),
      { numRuns: 300 },
    );
  });

  it('with failures, back-offs and slow starts at any moment: never two lives of one child, and all end in the end', async () => {
    const often = ['crash', 'crash', 'crash', 'fire', 'fire', 'fire'] as const;
    const moment = fc.record({
      pick: fc.nat(100),
      does: fc.constantFrom(...often, 'hold', 'hold', 'ok', 'fail', 'release', 'terminate', 'restart'),
    });
    await fc.assert(
      fc.asyncProperty(strategy, fc.array(moment, { maxLength: 40 }), async (how, moments) => {
        const world = virtualWorld();
        const names = [...'abcd'];
        const puppets = new Map<string, Puppet>(names.map((name) => [name, puppet(name)]));
        const supervisor = createSupervisor({
          name: 'top',
          strategy: how,
          intensity: 50,
          backoff: { minMs: 10, maxMs: 100 },
          clock: world,
          children: names.map((name) => ({ name, child: puppets.get(name) as Puppet, startDeadlineMs: 500 })),
        });
        const life = await supervisor.start();
        const refused: unknown[] = [];
        const tolerate = (promise: Promise<unknown>): void =>
          void promise.catch((thrown: unknown) => refused.push(thrown));

        for (const { pick, does } of moments) {
          const name = names[pick % names.length] as string;
          const child = puppets.get(name) as Puppet;
          switch (does) {
            case 'crash':
              child.end({ kind: 'error', error: new Error('crash') });
              break;
            case 'hold':
            case 'ok':
            case 'fail':
              child.starts = does;
              break;
            case 'release':
              child.release();
              break;
            case 'fire':
              world.fireNext();
              break;
            case 'terminate':
              tolerate(supervisor.terminateChild(name));
              break;
            case 'restart':
              tolerate(supervisor.restartChild(name));
              break;
          }
          // Half of the moments come while promises of the one before are still under way.
          if (pick % 2 === 0) await quiet();
          else await Promise.resolve();
        }
        const stopped = life.stop(1000);
        // What still starts may hear the abort only after it has begun to live.
        for (const child of puppets.values()) child.release();
        await quiet();
        while (world.fireNext()) await quiet();
        await stopped;
        expect([...puppets.values()].map(({ live, twins }) => [live, twins])).to.deep.equal(
          names.map(() => [false, 0]),
        );
        expect(supervisor.status().every(({ state }) => state === 'down')).to.equal(true);
        expect(refused.every((thrown) => (thrown as { code?: string }).code?.startsWith('SUP_'))).to.equal(true);
      }),
      { numRuns: 200 },
    );
  });
});
