/** The books of gateways: what is open is written down, and closed once when its gateway has died. */
import { expect } from 'chai';
import {
  createKernel,
  type JournalMessage,
  journalActor,
  type Ref,
  seededDispatcher,
  virtualWorld,
} from '../../actors/index.js';
import {
  address,
  type Bus,
  createMemoryBroker,
  decodeCbor,
  type JournalEnd,
  NetError,
  openJournal,
  type Stored,
  subjects,
} from '../../transport/index.js';

const graceMs = 6_000;
const s = subjects('spec');

interface Book {
  readonly gateway: string;
  readonly by: string;
  readonly open: string[];
  readonly accepted: { req: string }[];
  readonly ended: { req: string }[];
  readonly lost: string[];
}

function desk() {
  const dispatcher = seededDispatcher();
  const world = virtualWorld();
  const kernel = createKernel({ world, dispatcher });
  const broker = createMemoryBroker({
    namespace: 'spec',
    clock: { now: world.now, wallTime: world.wallTime, setTimer: world.setTimer },
  });
  const bus = broker.connect('spec');
  async function run(ms: number): Promise<void> {
    const end = world.now() + ms;
    while (world.now() < end) {
      dispatcher.drain();
      for (let i = 0; i < 4; i++) {
        await new Promise<void>((resolve) => setImmediate(resolve));
        dispatcher.drain();
      }
      world.advance(Math.min(50, end - world.now()), () => dispatcher.drain());
    }
  }
  const open = (gateway: string, on: Bus = broker.connect(gateway)) =>
    kernel.spawn(journalActor({ gateway, graceMs }, openJournal(on)), address('gateway', gateway, 'journal'));
  async function books(): Promise<Book[]> {
    const found: Stored[] = [];
    const stop = await bus.follow('JOURNAL', s.all('journal'), 'start', (message) => found.push(message));
    await run(50);
    stop();
    return found.map(({ data }) => decodeCbor(data) as Book);
  }
  const tell = (to: Ref<JournalMessage>, ...messages: JournalMessage[]) => {
    for (const message of messages) kernel.tell(to, message);
  };
  return { kernel, broker, run, open, books, tell };
}

const accepted = (req: string): JournalMessage => ({
  type: 'Accepted',
  entry: { req, model: 'mock', promptTokens: 1 },
});
const ended = (req: string): JournalMessage => {
  const end: JournalEnd = { req, outcome: 'complete', code: '', attempts: 1, promptTokens: 1, completionTokens: 1 };
  return { type: 'Ended', end };
};

describe('the journal of a gateway', () => {
  it('is one record for many requests, and none while nothing happens', async () => {
    const { run, open, books, tell } = desk();
    const journal = open('a');
    for (let n = 0; n < 500; n++) tell(journal, accepted(`r${n}`), ...(n < 499 ? [ended(`r${n}`)] : []));
    await run(1_000);
    const written = await books();
    expect(written).to.have.length(1);
    expect(written[0]).to.deep.include({ gateway: 'a', by: 'a', open: ['r499'], lost: [] });
    expect(written[0]?.ended).to.have.length(499);
    expect(written[0]?.accepted.map(({ req }) => req)).to.deep.equal(['r499']);
    await run(20_000);
    expect(await books()).to.have.length(1);
    tell(journal, ended('r499'));
    await run(1_000);
    expect((await books()).at(-1)).to.deep.include({ open: [], accepted: [] });
  });

  it('is closed by exactly one of those that hear of its death, as gateway_lost', async () => {
    const { kernel, run, open, books, tell } = desk();
    const [a, b, c] = [open('a'), open('b'), open('c')];
    tell(a, accepted('r1'), accepted('r2'), accepted('r3'), ended('r2'));
    await run(1_000);
    await kernel.kill(a);
    for (const other of [b, c]) tell(other, { type: 'GatewayGone', incarnation: 'a' });
    await run(1_000);
    const written = await books();
    expect(written.map(({ open: still, lost }) => [still, lost])).to.deep.equal([
      [['r1', 'r3'], []],
      [[], ['r1', 'r3']],
    ]);
    expect(written[1]?.gateway).to.equal('a');
    expect(written[1]?.by).to.be.oneOf(['b', 'c']);
    tell(c, { type: 'GatewayGone', incarnation: 'a' });
    await run(20_000);
    expect(await books()).to.have.length(2);
  });

  it('is closed by one that starts later, unless its gateway turns out to live', async () => {
    const { kernel, run, open, books, tell } = desk();
    const [dead, alive] = [open('dead'), open('alive')];
    // They know each other, and have looked around already.
    tell(alive, { type: 'GatewaySeen', incarnation: 'dead' });
    tell(dead, accepted('r1'), { type: 'GatewaySeen', incarnation: 'alive' });
    tell(alive, accepted('r2'));
    await run(graceMs + 1_000);
    expect(await books()).to.have.length(2);
    await kernel.kill(dead);
    tell(open('new'), { type: 'GatewaySeen', incarnation: 'alive' });
    await run(graceMs - 100);
    expect(await books()).to.have.length(2);
    await run(1_000);
    expect((await books()).slice(2)).to.have.length(1);
    expect((await books())[2]).to.deep.include({ gateway: 'dead', by: 'new', lost: ['r1'] });
  });

  it('is looked for once in ten seconds while none can be closed, however many gateways have died', async () => {
    const { broker, kernel, run, open, tell } = desk();
    for (const gateway of ['a', 'b', 'c']) {
      const journal = open(gateway);
      tell(journal, accepted(gateway));
      await run(1_000);
      await kernel.kill(journal);
    }
    const full = broker.connect('new');
    let looks = 0;
    open('new', {
      ...full,
      latest(stream, filter) {
        looks++;
        return full.latest(stream, filter);
      },
      store: () => Promise.reject(new NetError('NET_STREAM_FULL', { what: 'the journal' })),
    });
    await run(graceMs + 50_000);
    expect(looks).to.be.within(4, 6);
  });

  it('goes on when it was closed by mistake, and says again what is open', async () => {
    const { run, open, books, tell } = desk();
    const [a, b] = [open('a'), open('b')];
    tell(a, accepted('r1'), accepted('r2'));
    await run(1_000);
    tell(b, { type: 'GatewayGone', incarnation: 'a' });
    await run(1_000);
    tell(a, ended('r1'));
    await run(3_000);
    const written = await books();
    expect(written.map(({ by }) => by)).to.deep.equal(['a', 'b', 'a']);
    expect(written[2]).to.deep.include({ open: ['r2'] });
    expect(written[2]?.ended.map(({ req }) => req)).to.deep.equal(['r1']);
    expect(written[2]?.accepted.map(({ req }) => req)).to.deep.equal(['r2']);
  });

  it('waits for the broker, forgets the oldest ends beyond its bound, and has everything that is open', async () => {
    const { broker, run, open, books, tell } = desk();
    const a = open('a');
    broker.stop();
    tell(a, accepted('long'));
    for (let round = 0; round < 12; round++) {
      for (let n = 0; n < 1_000; n++) tell(a, accepted(`${round}-${n}`), ended(`${round}-${n}`));
      await run(500);
    }
    broker.start();
    await run(6_000);
    const written = await books();
    const ends = written.flatMap((book) => book.ended.map(({ req }) => req));
    expect(written.at(-1)?.open).to.deep.equal(['long']);
    expect(ends).to.have.length(8_192);
    expect(ends.at(-1)).to.equal('11-999');
    expect(Math.max(...written.map((book) => book.ended.length))).to.equal(2_048);
  });

  it('is complete when its gateway ends in order', async () => {
    const { kernel, run, open, books, tell } = desk();
    const a = open('a');
    tell(a, accepted('r1'), ended('r1'));
    const done = kernel.ask<JournalMessage, { readonly type: 'Done' }>(
      a,
      (to) => ({ type: 'Finish', done: to }),
      5_000,
    );
    await run(200);
    expect(await done).to.deep.equal({ type: 'Done' });
    expect((await books()).at(-1)).to.deep.include({ open: [] });
  });
});
