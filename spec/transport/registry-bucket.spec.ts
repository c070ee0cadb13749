/** The registry as any NATS program sees it: an ordinary bucket, read here by the client library's own KV reader. */
import { type KvEntry, Kvm } from '@nats-io/kv';
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { expect } from 'chai';
import { announce, type NatsBus, subjects } from '../../transport/index.js';
import { type Broker, Gate, startBroker } from './kit.js';

describe('The registry as an ordinary KV bucket', function () {
  this.timeout(60_000);
  const leaseMs = 1_000;
  const info = { component: 'decode', instance: 'd', node: 'n', host: 'h', pid: 1, draining: false } as const;
  let broker: Broker;
  let bus: NatsBus;
  let stranger: NatsConnection;

  beforeEach(async () => {
    broker = await startBroker({ settings: { leaseMs } });
    bus = await broker.connect('decode');
    const { url, user, password } = broker.server.credentials('node');
    stranger = await connect({ servers: url, user, pass: password, inboxPrefix: '_INBOX_node' });
  });
  afterEach(async () => {
    await stranger.close();
    await broker.stop();
  });

  it('has one key per instance with readable JSON, and shows renewals, withdrawals and ends of leases', async () => {
    const bucket = await new Kvm(stranger).open(subjects('spec').bucket);
    const gate = new Gate();
    const seen: KvEntry[] = [];
    const watch = await bucket.watch();
    const reading = (async () => {
      for await (const entry of watch) {
        seen.push(entry);
        gate.change();
      }
    })();
    const of = (key: string, operation: string) =>
      seen.filter((entry) => entry.key === key && entry.operation === operation).length;

    const staying = announce(bus, { ...info, incarnation: 'one' }, { leaseMs });
    const dying = await broker.connect('decode');
    announce(dying, { ...info, incarnation: 'two' }, { leaseMs });
    await gate.until(() => of('instance.decode.one', 'PUT') > 1 && of('instance.decode.two', 'PUT') > 0);
    const keys: string[] = [];
    for await (const key of await bucket.keys()) keys.push(key);
    expect(keys.sort()).to.deep.equal(['instance.decode.one', 'instance.decode.two']);
    expect((await bucket.get('instance.decode.one'))?.json()).to.deep.equal({ ...info, incarnation: 'one' });

    await dying.close();
    await gate.until(() => of('instance.decode.two', 'PURGE') + of('instance.decode.two', 'DEL') > 0);
    expect(await bucket.get('instance.decode.one')).to.include({ operation: 'PUT' });
    await staying.withdraw();
    await gate.until(() => of('instance.decode.one', 'PURGE') + of('instance.decode.one', 'DEL') > 0);
    watch.stop();
    await reading;
  });

  it('has the configuration that the library itself would give it', async () => {
    const { streamInfo } = await (await new Kvm(stranger).open(subjects('spec').bucket)).status();
    const theirs = await (
      await new Kvm(stranger).create('theirs', { ttl: leaseMs, markerTTL: 60_000, max_bytes: 16 * 1024 * 1024 })
    ).status();
    const { name: _, subjects: __, ...wanted } = theirs.streamInfo.config;
    // The Go client denies the removal of single revisions, and so do we; this one does not.
    expect(streamInfo.config).to.deep.include({ ...wanted, deny_delete: true });
  });
});
