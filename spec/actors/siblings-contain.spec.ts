/** The frontend's neighbours in its process: a defect that one worker, or the books, bring out does not end the streams of all. */
import { expect } from 'chai';
import {
  type Behaviour,
  createKernel,
  type DeadLetter,
  type FrontendMessage,
  type JournalMessage,
  journalActor,
  type RegistryMessage,
  type RouterMessage,
  registryActor,
  seededDispatcher,
  virtualWorld,
} from '../../actors/index.js';
import { address, type InstanceInfo, type Journal } from '../../transport/index.js';

function desk() {
  const dispatcher = seededDispatcher();
  const world = virtualWorld();
  const kernel = createKernel({ world, dispatcher });
  const letters: DeadLetter[] = [];
  kernel.onDeadLetter((letter) => letters.push(letter));
  /** Notes what it hears. */
  function listener<M extends { readonly type: string }>(name: string, heard: M[]) {
    const behaviour: Behaviour<M, null> = {
      name: 'listener',
      start: () => null,
      handle(state, message) {
        heard.push(message);
        return state;
      },
    };
    return kernel.spawn(behaviour, address('gateway', 'gateway-0-a', name));
  }
  return { kernel, world, dispatcher, letters, listener };
}

describe('a registry that cannot handle what it hears of one worker', () => {
  const info = (incarnation: string): InstanceInfo => ({
    component: 'decode',
    instance: incarnation,
    incarnation,
    node: 'n',
    host: 'h',
    pid: 1,
    draining: false,
    model: 'mock',
    engine: 'mock',
    fingerprint: 'f',
    slots: 1,
  });

  it('goes on with the others, and keeps what it could not handle as a dead letter', () => {
    const { kernel, dispatcher, letters, listener } = desk();
    const up: string[] = [];
    const heard: RouterMessage[] = [];
    const registry = kernel.spawn(
      registryActor(
        listener('router', heard),
        listener<FrontendMessage>('frontend', []),
        { silentMs: 1_500, stuckMs: 5_000 },
        (live) => {
          if (live.at(-1)?.incarnation === 'decode-1-a') throw new Error('cannot follow it');
          up.push(live.at(-1)?.incarnation ?? '');
        },
      ),
      address('gateway', 'gateway-0-a', 'registry'),
    );
    const tell = (message: RegistryMessage) => {
      kernel.tell(registry, message);
      dispatcher.drain();
    };
    for (const n of [0, 1, 2]) tell({ type: 'Seen', info: info(`decode-${n}-a`) });
    tell({ type: 'Heard' } as RegistryMessage);
    expect(kernel.ended(registry)?.kind, 'of nobody in particular').to.equal('error');
    expect(up).to.deep.equal(['decode-0-a', 'decode-2-a']);
    expect(heard.map(({ type }) => type)).to.deep.equal(['InstanceUp', 'InstanceUp', 'InstanceUp']);
    expect(letters.filter(({ reason }) => reason === 'failed').map(({ error }) => error?.message)).to.deep.equal([
      'cannot follow it',
    ]);
  });
});

describe('a journal that cannot write', () => {
  it('tries again once a second and loses nothing that is open', () => {
    const { kernel, world, dispatcher } = desk();
    const written: string[][] = [];
    let broken = true;
    const book: Journal = {
      append(record) {
        if (broken) throw new Error('no pen');
        written.push([...record.open]);
        return new Promise(() => {});
      },
      last: () => new Promise(() => {}),
    };
    const journal = kernel.spawn(
      journalActor({ gateway: 'gateway-0-a', graceMs: 60_000 }, book),
      address('gateway', 'gateway-0-a', 'journal'),
    );
    const run = (ms: number) => {
      for (let at = 0; at < ms; at += 50) {
        dispatcher.drain();
        world.advance(50, () => dispatcher.drain());
      }
    };
    const entry = { req: 'r1', model: 'mock', promptTokens: 3 };
    kernel.tell(journal, { type: 'Accepted', entry } satisfies JournalMessage);
    run(3_000);
    expect(kernel.counters).to.deep.include({ crashes: 0, deadLetters: 3 });
    broken = false;
    run(2_000);
    expect(written).to.deep.equal([['r1']]);
  });
});
