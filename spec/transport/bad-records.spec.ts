/** What others have stored where instances and books are read: whatever it is, nobody acts on it, and good records beside it count. */
import { expect } from 'chai';
import {
  announce,
  createMemoryBroker,
  encodeCbor,
  type InstanceEvent,
  openJournal,
  subjects,
  watchInstances,
} from '../../transport/index.js';
import { Gate } from './kit.js';

const bytes = (text: string) => Buffer.from(text);

describe('Records that are none', () => {
  const info = {
    component: 'decode',
    instance: 'd',
    incarnation: 'good',
    node: 'n',
    host: 'h',
    pid: 1,
    draining: false,
  };
  const entry = (change: object) => bytes(JSON.stringify({ ...info, incarnation: 'bad', ...change }));
  const bad: Readonly<Record<string, Uint8Array>> = {
    'no JSON': Uint8Array.of(0xff, 0x00, 0x12),
    empty: new Uint8Array(0),
    'a list': bytes('[1,2,3]'),
    'another schema': entry({ pid: 'one' }),
    'an unknown component': entry({ component: 'broker' }),
    'one in the name of another': entry({ incarnation: 'good' }),
    'one that is too large': entry({ host: 'h'.repeat(70_000) }),
  };

  it('in the registry are counted and show nobody; an instance that is there stays', async () => {
    const broker = createMemoryBroker({ namespace: 'spec' });
    const [writer, reader] = [broker.connect(), broker.connect()];
    const events: InstanceEvent[] = [];
    const gate = new Gate();
    const watch = await watchInstances(reader, (event) => {
      events.push(event);
      gate.change();
    });
    const announcement = announce(writer, info as InstanceEvent['info']);
    await gate.until(() => events.length === 1);
    for (const value of Object.values(bad)) await writer.put('instance.decode.bad', value);
    await writer.put('instance.decode.good', bytes('overwritten'));
    announcement.update({ ...info, draining: true } as InstanceEvent['info']);
    await gate.until(() => events.length === 2);
    expect(events.map(({ kind, info: { incarnation } }) => `${kind} ${incarnation}`)).to.deep.equal([
      'added good',
      'changed good',
    ]);
    expect(watch.counters).to.deep.equal({ malformed: Object.keys(bad).length + 1, failed: 0 });
    await announcement.withdraw();
    watch.stop();
  });

  it('in the journal are left out, and the books of others are read all the same', async () => {
    const bus = createMemoryBroker({ namespace: 'spec' }).connect();
    const journal = openJournal(bus);
    const record = {
      v: 1 as const,
      gateway: 'good',
      by: 'good',
      at: 1,
      open: ['r1'],
      accepted: [],
      ended: [],
      lost: [],
    };
    await journal.append(record, 0);
    const s = subjects('spec');
    const wrong = [
      ...Object.values(bad),
      encodeCbor({ ...record, v: 2 }),
      encodeCbor({ ...record, open: 'all' }),
      encodeCbor({ ...record, gateway: 'x'.repeat(300) }),
    ];
    for (const [at, value] of wrong.entries()) await bus.store(s.journal(`bad-${at}`), value, `bad-${at}`, 1_000);
    expect((await journal.last()).map((last) => last.record.gateway)).to.deep.equal(['good']);
  });
});
