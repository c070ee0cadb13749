import { expect } from 'chai';
import {
  type Behaviour,
  costConfig,
  createKernel,
  oneClass,
  type RawEntry,
  type RouterMessage,
  recorded,
  seededDispatcher,
  virtualWorld,
} from '../../actors/index.js';
import { promptOf } from '../../scenarios/simulator/client.js';
import { drawSchedule } from '../../scenarios/simulator/index.js';
import { address, type InstanceInfo } from '../../transport/index.js';
import { bytesOf, livesOf, runAgain, taped, turnsOf } from './tape-kit.js';

type Message = { readonly type: string };
type Any = Behaviour<Message, unknown>;

/** A message of this type is lost: a line of code that is not there any more. */
const deaf =
  (type: string) =>
  (behaviour: Any): Any => ({
    ...behaviour,
    handle: (state, message, ctx) => (message.type === type ? state : behaviour.handle(state, message, ctx)),
  });

describe('The tape', function () {
  this.timeout(120_000);

  it('has all that it takes to run router, frontend, registry and journal again, whatever fails around them', async () => {
    let entries = 0;
    for (const seed of [3, 7, 11]) {
      const { result, tapes } = await taped(seed);
      expect(result.violations).to.deep.equal([]);
      for (const [, records] of tapes) {
        for (const [, life] of livesOf(turnsOf(records))) {
          entries += life.length;
          expect(runAgain(life), `seed ${seed}`).to.equal(undefined);
        }
      }
    }
    expect(entries).to.be.above(3_000);
  });

  it('shows at which message other code does something else', async () => {
    const { tapes } = await taped(7);
    const lives = [...tapes.values()].flatMap((records) => [...livesOf(turnsOf(records))]);
    const planted = [
      { actor: 'router', lost: 'Load', shows: true },
      { actor: 'router', lost: 'Release', shows: true },
      { actor: 'router', lost: 'FirstToken', shows: true },
      { actor: 'frontend', lost: 'Frame', shows: true },
      { actor: 'frontend', lost: 'WorkerUp', shows: true },
      { actor: 'frontend', lost: 'ClientGone', shows: true },
      { actor: 'registry', lost: 'Seen', shows: true },
      { actor: 'journal', lost: 'Ended', shows: true },
    ];
    const found = planted.map(({ actor, lost }) => ({
      actor,
      lost,
      shows: lives.some(([of, life]) => of.endsWith(`.${actor}`) && runAgain(life, deaf(lost)) !== undefined),
    }));
    expect(found).to.deep.equal(planted);
  });

  it('holds no prompt and no token with level metadata, and runs the router again all the same', async () => {
    const schedule = drawSchedule(7);
    const { tapes } = await taped(schedule, false);
    const prompts = schedule.requests.map((planned, index) => promptOf(planned, index));
    for (const [, records] of tapes) {
      for (const bytes of records) {
        const text = Buffer.from(bytes).toString('latin1');
        const holds = prompts.some((prompt) => {
          const some = prompt.subarray(0, 8);
          return text.includes(Buffer.from(some.buffer, some.byteOffset, some.byteLength).toString('latin1'));
        });
        expect(holds).to.equal(false);
      }
      const lives = livesOf(turnsOf(records));
      for (const [actor, life] of lives) {
        if (actor.endsWith('.frontend')) expect(runAgain(life)).to.match(/prompts and tokens are not on this tape/);
        else expect(runAgain(life)).to.equal(undefined);
      }
      expect([...lives.keys()].some((actor) => actor.endsWith('.router'))).to.equal(true);
    }
  });

  it('runs 100,000 messages of a router again, and finds no difference', () => {
    const raw: RawEntry[] = [];
    const dispatcher = seededDispatcher();
    const kernel = createKernel({ world: virtualWorld({ seed: 5 }), dispatcher });
    const tape = {
      code: 'this',
      content: false,
      add: (entry: RawEntry) => void raw.push(entry),
      failed(_actor: string, error: unknown) {
        throw error;
      },
    };
    const config = {
      gateway: 'gateway-0-a',
      mode: 'kv',
      blockTokens: 64,
      cost: costConfig(),
      caches: { maxBytes: 1024 * 1024, assumeMs: 10_000 },
      queue: oneClass(1_000),
      inhibition: { firstMs: 5_000, longestMs: 60_000 },
    } as const;
    const router = kernel.spawn(
      recorded(tape, 'router', { config }, { tape: undefined }),
      address('gateway', 'gateway-0-a', 'router'),
    );
    const replies = kernel.spawn(
      { name: 'replies', start: () => null, handle: (state: null) => state },
      address('gateway', 'gateway-0-a', 'frontend'),
    );
    const tell = (message: RouterMessage) => {
      kernel.tell(router, message);
      dispatcher.drain();
    };
    for (const component of ['prefill', 'decode'] as const) {
      for (const index of [0, 1]) {
        const incarnation = `${component}-${index}-a`;
        tell({
          type: 'InstanceUp',
          info: { component, incarnation, instance: incarnation, model: 'm', slots: 64 } as InstanceInfo,
        });
      }
    }
    for (let num = 1; num <= 25_000; num++) {
      const request = {
        num,
        attempt: 1,
        id: `${num}`,
        model: 'm',
        choices: 1,
        exclude: new Set<string>(),
        promptTokens: 128,
        queueBy: 1e9,
        hashes: BigUint64Array.of(BigInt(num % 50), BigInt(num)),
      };
      tell({ type: 'Route', request, replyTo: replies as never });
      tell({ type: 'FirstToken', num, attempt: 1, cachedTokens: 0 });
      tell({ type: 'PrefillDone', num, attempt: 1 });
      tell({ type: 'Release', num, attempt: 1, end: 'served' });
    }
    const [life = []] = livesOf(turnsOf(bytesOf(raw))).values();
    expect(life.length).to.be.above(100_000);
    expect(runAgain(life)).to.equal(undefined);
  });
});
