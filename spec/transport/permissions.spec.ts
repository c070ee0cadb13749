/** Least rights per role, proved on a real broker; and namespaces that do not meet. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { connect as connectClassic } from 'nats';
import {
  connectNats,
  createPost,
  decodeCbor,
  ensureStreams,
  isNetError,
  type NatsBus,
  openMailbox,
  subjects,
} from '../../transport/index.js';
import { type Broker, codeOf, elapse, fresh, Gate, head, natsBinary, startBroker } from './kit.js';

const cancel = (num: number) => ({ reply: { gateway: 'gw', num }, reason: '' });

describe('Rights on the broker', function () {
  this.timeout(30_000);
  let broker: Broker;
  let gateway: NatsBus;
  let prefill: NatsBus;
  let decode: NatsBus;
  let observer: NatsBus;
  const s = subjects('spec');

  before(async () => {
    broker = await startBroker();
    [gateway, prefill, decode, observer] = await Promise.all([
      broker.connect('gateway'),
      broker.connect('prefill'),
      broker.connect('decode'),
      broker.connect('observer'),
    ]);
  });
  after(() => broker.stop());

  it('let a worker read the mailboxes of its own kind and no other', async () => {
    (await openMailbox(decode, fresh('decode'), () => {})).stop();
    (await openMailbox(prefill, fresh('prefill'), () => {})).stop();
    expect(await codeOf(openMailbox(decode, fresh('gateway'), () => {}))).to.equal('NET_DENIED');
    expect(await codeOf(openMailbox(decode, fresh('prefill'), () => {}))).to.equal('NET_DENIED');
    expect(await codeOf(openMailbox(prefill, fresh('decode'), () => {}))).to.equal('NET_DENIED');
    expect(await codeOf(decode.follow('MAIL', s.all('mail'), 'start', () => {}))).to.equal('NET_DENIED');
    expect(await codeOf(decode.follow('DEAD', s.dead('gateway'), 'start', () => {}))).to.equal('NET_DENIED');
  });

  it('let a role publish into the mailboxes it has business with and no other', async () => {
    expect(await codeOf(gateway.store(s.mail(fresh('decode')), new Uint8Array(1), 'g1', 3_000))).to.equal('resolved');
    expect(await codeOf(prefill.store(s.mail(fresh('decode')), new Uint8Array(1), 'p1', 3_000))).to.equal('resolved');
    expect(await codeOf(decode.store(s.mail(fresh('prefill')), new Uint8Array(1), 'd0', 3_000))).to.equal('resolved');
    expect(await codeOf(decode.store(s.mail(fresh('decode')), new Uint8Array(1), 'd1', 3_000))).to.equal('NET_DENIED');
    expect(await codeOf(decode.store(s.mail(fresh('gateway')), new Uint8Array(1), 'd2', 3_000))).to.equal('NET_DENIED');
    expect(await codeOf(observer.store(s.mail(fresh('decode')), new Uint8Array(1), 'o1', 3_000))).to.equal(
      'NET_DENIED',
    );
    const post = createPost(decode);
    const error = await post
      .command(fresh('decode'), fresh('decode'), 'Cancel', cancel(1), head())
      .catch((e: unknown) => e);
    if (!isNetError(error, 'NET_REFUSED')) throw new Error(`not refused: ${error}`);
    expect(isNetError(error.cause, 'NET_DENIED')).to.equal(true);
    expect(decode.state).to.equal('up');
  });

  it('let nobody but the node say that an incarnation is dead, or report the load of another kind', async () => {
    const heard: string[] = [];
    const gate = new Gate();
    const note = (_: Uint8Array, subject: string) => {
      heard.push(subject);
      gate.change();
    };
    for (const subject of [s.down(), s.load()]) observer.subscribe(subject, note);
    await observer.flush();
    const node = await broker.connect('node');
    const of = { down: s.down('decode', 'x'), load: s.load('decode', 'x') };
    for (const bus of [gateway, prefill])
      for (const subject of [of.down, of.load]) bus.send(subject, new Uint8Array(1));
    for (const subject of [of.down, of.load]) decode.send(subject, new Uint8Array(1));
    await Promise.all([gateway.flush(), prefill.flush(), decode.flush()]);
    node.send(of.down, new Uint8Array(1));
    await gate.until(() => heard.includes(of.down));
    expect(heard).to.deep.equal([of.load, of.down]);
  });

  it('let gateways alone tell and hear what routers place', async () => {
    const heard: string[] = [];
    const gate = new Gate();
    const note = (_: Uint8Array, subject: string) => {
      heard.push(subject);
      gate.change();
    };
    gateway.subscribe(s.replica(), note);
    decode.subscribe(s.replica(), () => heard.push('a worker'));
    await Promise.all([gateway.flush(), decode.flush()]);
    for (const bus of [decode, prefill, observer]) bus.send(s.replica('gateway', 'x'), new Uint8Array(1));
    await Promise.all([decode.flush(), prefill.flush(), observer.flush()]);
    gateway.send(s.replica('gateway', 'y'), new Uint8Array(1));
    await gate.until(() => heard.includes(s.replica('gateway', 'y')));
    await decode.flush();
    expect(heard).to.deep.equal([s.replica('gateway', 'y')]);
  });

  it('keep a worker from changing streams, and from listing itself as another kind', async () => {
    expect(await codeOf(ensureStreams(decode, { tape: 'full', sizeFactor: 0.1 }))).to.equal('NET_DENIED');
    expect(await codeOf(decode.manager.streams.purge(s.stream('MAIL')))).to.not.equal('resolved');
    expect(await codeOf(decode.put('instance.decode.x', new Uint8Array(1)))).to.equal('resolved');
    expect(await codeOf(decode.put('instance.gateway.x', new Uint8Array(1)))).to.equal('NET_DENIED');
  });

  it('let an observer read the streams and write nothing', async () => {
    const to = fresh('decode');
    const post = createPost(gateway);
    await post.command(fresh('gateway'), to, 'Cancel', cancel(1), head());
    const gate = new Gate();
    let seen = 0;
    const stop = await observer.follow('MAIL', s.all('mail'), 'start', () => {
      seen += 1;
      gate.change();
    });
    await gate.until(() => seen > 0);
    stop();
    expect(await codeOf(observer.put('instance.decode.y', new Uint8Array(1)))).to.equal('NET_DENIED');
  });

  it('do not mix namespaces: the same address in another one is another mailbox', async () => {
    const credentials = broker.server.credentials('node');
    const other = await connectNats({ ...credentials, namespace: 'other' }).catch((e: unknown) => e);
    if (!(other && typeof other === 'object' && 'state' in other)) throw new Error(String(other));
    const bus = other as NatsBus;
    // The node's role is bound to its own namespace as well.
    expect(await codeOf(bus.store(subjects('other').mail(fresh('decode')), new Uint8Array(1), 'x', 1_000))).to.equal(
      'NET_DENIED',
    );
    await bus.close();
  });

  it('leave mail readable: the classic client reads a mailbox as plain CBOR', async () => {
    const to = fresh('decode');
    const from = fresh('gateway', 'frontend');
    const post = createPost(gateway);
    await post.command(from, to, 'Cancel', cancel(42), head({ req: 'classic' }));
    const { url, user, password } = broker.server.credentials('node');
    const classic = await connectClassic({ servers: url, user, pass: password, inboxPrefix: '_INBOX_node' });
    const consumer = await classic.jetstream().consumers.get(s.stream('MAIL'), { filterSubjects: s.mail(to) });
    const message = await consumer.next();
    const mail = decodeCbor(message?.data as Uint8Array);
    expect(mail).to.deep.include({ v: 1, type: 'Cancel', from, to, req: 'classic', body: cancel(42) });
    await classic.close();
  });
});

describe('Two namespaces on one broker', function () {
  this.timeout(30_000);
  const dir = mkdtempSync(path.join(tmpdir(), 'dynact-shared-'));
  let server: ChildProcess;
  let url: string;
  const buses: NatsBus[] = [];

  before(async () => {
    const ports = path.join(dir, 'ports');
    mkdirSync(ports);
    const args = ['-a', '127.0.0.1', '-p', '-1', '-js', '-sd', path.join(dir, 'store'), '--ports_file_dir', ports];
    server = spawn(natsBinary(), args, { stdio: 'ignore' });
    const file = path.join(ports, `nats-server_${server.pid}.ports`);
    while (!existsSync(file) || !readFileSync(file, 'utf8').endsWith('}')) await elapse(10);
    url = (JSON.parse(readFileSync(file, 'utf8')) as { nats: string[] }).nats[0] as string;
  });
  after(async () => {
    await Promise.all(buses.map((bus) => bus.close()));
    server.kill('SIGKILL');
    rmSync(dir, { recursive: true, force: true });
  });

  it('do not mix: the same address in both is two mailboxes, the same instance two entries', async () => {
    for (const namespace of ['left', 'right']) {
      const bus = await connectNats({ url, namespace });
      buses.push(bus);
      await ensureStreams(bus, { tape: 'off', sizeFactor: 0.01 });
    }
    const [left, right] = buses as [NatsBus, NatsBus];
    const to = fresh('decode');
    const gate = new Gate();
    const got = { left: [] as number[], right: [] as number[] };
    const keys = { left: [] as string[], right: [] as string[] };
    for (const [side, bus] of [['left', left] as const, ['right', right] as const]) {
      await openMailbox(bus, to, (mail) => {
        if (mail.type === 'Cancel') got[side].push(mail.body.reply.num);
        gate.change();
      });
      await bus.watch('instance.', ({ key }) => {
        keys[side].push(key);
        gate.change();
      });
    }
    await createPost(left).command(fresh('gateway'), to, 'Cancel', cancel(1), head());
    await createPost(right).command(fresh('gateway'), to, 'Cancel', cancel(2), head());
    await left.put('instance.decode.only-left', new Uint8Array(1));
    await right.put('instance.decode.only-right', new Uint8Array(1));
    await gate.until(() => got.left.length + got.right.length >= 2 && keys.left.length + keys.right.length >= 2);
    await Promise.all(buses.map((bus) => bus.flush()));
    expect(got).to.deep.equal({ left: [1], right: [2] });
    expect(keys).to.deep.equal({ left: ['instance.decode.only-left'], right: ['instance.decode.only-right'] });
  });

  it('accept no name that could reach into another one', () => {
    for (const bad of ['', 'A', 'a.b', 'a*', '>', '-a', 'x'.repeat(33)])
      expect(() => subjects(bad)).to.throw(TypeError);
  });

  it('name the setting that differs when somebody else made the streams otherwise, and change it only if told to', async () => {
    const bus = await connectNats({ url, namespace: 'odd' });
    buses.push(bus);
    await ensureStreams(bus, { tape: 'off', sizeFactor: 0.01 });
    const size = await ensureStreams(bus, { tape: 'off', sizeFactor: 0.02 }).catch((e: Error) => e);
    expect(size).to.have.property('code', 'NET_CONFIG');
    expect((size as Error).message).to.include('DYN_odd_MAIL: setting max_bytes is 2684355, wanted 5368709');
    const storage = await ensureStreams(bus, { tape: 'full', sizeFactor: 0.01 }).catch((e: Error) => e);
    expect((storage as Error).message).to.include('setting storage is "memory", wanted "file"');
    await ensureStreams(bus, { tape: 'full', sizeFactor: 0.02 }, { adopt: true });
    await ensureStreams(bus, { tape: 'full', sizeFactor: 0.02 });
  });
});
