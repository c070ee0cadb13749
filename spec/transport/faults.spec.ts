/** The broker dies, freezes, fills up and says no; commands are neither lost, nor doubled, nor turned round. */
import { spawn } from 'node:child_process';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import {
  announce,
  type Bus,
  createMemoryBroker,
  createPost,
  type Envelope,
  encodeCbor,
  ensureStreams,
  type InstanceEvent,
  listenFrames,
  type NatsBus,
  openMailbox,
  subjects,
  watchInstances,
} from '../../transport/index.js';
import { type Broker, codeOf, elapse, fresh, Gate, head, startBroker, stateOf } from './kit.js';

const cancel = (num: number) => ({ reply: { gateway: 'gw', num }, reason: '' });
const order = (n: number) => Array.from({ length: n }, (_, num) => num);

describe('A broker that fails', function () {
  this.timeout(60_000);
  let broker: Broker;
  let sender: NatsBus;
  let reader: NatsBus;

  beforeEach(async () => {
    broker = await startBroker();
    sender = await broker.connect('gateway');
    reader = await broker.connect('decode');
  });
  afterEach(() => broker.stop());

  it('is killed and restarted while commands flow: each arrives once, in order', async () => {
    const to = fresh();
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const got: number[] = [];
    await openMailbox(reader, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      gate.change();
    });
    const post = createPost(sender);
    const total = 3_000;
    const results: Promise<void>[] = [];
    for (let num = 0; num < total; num++) {
      results.push(post.command(from, to, 'Cancel', cancel(num), head({ budgetMs: 30_000 })));
      if (num === 1_000) {
        await gate.until(() => got.length > 500);
        // Some are stored and unconfirmed, some are on the wire, some wait.
        await broker.kill();
      }
      if (num === 2_000) {
        await stateOf(sender, 'down');
        await broker.restart();
      }
    }
    await Promise.all(results);
    await gate.until(() => got.length >= total);
    expect(got).to.deep.equal(order(total));
    expect(post.outbox.counters.retried).to.be.greaterThan(0);
    expect(post.outbox.messages).to.equal(0);
    expect(post.outbox.bytes).to.equal(0);
  });

  it('is frozen: the connection is seen down, commands wait, and all arrive in order after the thaw', async () => {
    const to = fresh();
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const got: number[] = [];
    await openMailbox(reader, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      gate.change();
    });
    const post = createPost(sender);
    const results = order(200).map((num) => post.command(from, to, 'Cancel', cancel(num), head({ budgetMs: 30_000 })));
    await results[0];
    broker.freeze();
    await stateOf(sender, 'down');
    results.push(
      ...order(200).map((n) => post.command(from, to, 'Cancel', cancel(200 + n), head({ budgetMs: 30_000 }))),
    );
    expect(await codeOf(sender.request('dyn.spec.query.x', new Uint8Array(), 1_000))).to.equal('NET_DOWN');
    broker.thaw();
    await Promise.all(results);
    await gate.until(() => got.length >= 400);
    expect(got).to.deep.equal(order(400));
  });

  it('is away longer than a command may wait: the command ends with NET_TIMEOUT at its deadline', async () => {
    await broker.kill();
    await stateOf(sender, 'down');
    const post = createPost(sender);
    const before = performance.now();
    const code = await codeOf(post.command(fresh('gateway'), fresh(), 'Cancel', cancel(1), head({ budgetMs: 300 })));
    expect(code).to.equal('NET_TIMEOUT');
    expect(performance.now() - before).to.be.within(290, 1_000);
    expect(post.outbox.messages).to.equal(0);
  });

  it('is away: frames are dropped and counted, and never thrown', async () => {
    await broker.kill();
    await stateOf(sender, 'down');
    const post = createPost(sender);
    for (let seq = 0; seq < 10; seq++) post.step('gw', { worker: 'w', seq, items: [] });
    expect(sender.counters.dropped).to.equal(10);
  });

  it('drops mail that outlived its budget while the broker was frozen', async () => {
    const to = fresh();
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const codes: string[] = [];
    const got: number[] = [];
    await createPost(sender).command(from, to, 'Cancel', cancel(1), head({ budgetMs: 250 }));
    await createPost(sender).command(fresh('gateway'), to, 'Cancel', cancel(2), head({ budgetMs: 60_000 }));
    broker.freeze();
    await stateOf(reader, 'down');
    await elapse(300);
    broker.thaw();
    await stateOf(reader, 'up');
    await openMailbox(
      reader,
      to,
      (mail) => {
        if (mail.type === 'Cancel') got.push(mail.body.reply.num);
        gate.change();
      },
      { onDropped: (code) => codes.push(code) },
    );
    await gate.until(() => got.length === 1);
    expect(got).to.deep.equal([2]);
    expect(codes).to.deep.equal(['NET_EXPIRED']);
  });

  it('loses its memory streams: readers begin the new ones at their start, instances stay known', async () => {
    await broker.stop();
    broker = await startBroker({ settings: { tape: 'off' } });
    const node = await broker.connect('node');
    sender = await broker.connect('gateway');
    reader = await broker.connect('decode');
    const to = fresh();
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const got: number[] = [];
    const events: InstanceEvent[] = [];
    const info = { component: 'decode', instance: 'd', node: 'n', host: 'h', pid: 1, draining: false } as const;
    announce(reader, { ...info, incarnation: 'one' });
    await watchInstances(sender, (event) => {
      events.push(event);
      gate.change();
    });
    await openMailbox(reader, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      gate.change();
    });
    const post = createPost(sender);
    for (const num of order(20)) await post.command(from, to, 'Cancel', cancel(num), head());
    await gate.until(() => got.length === 20 && events.length === 1);
    await broker.restart();
    await stateOf(node, 'up');
    const results = order(5).map((n) => post.command(from, to, 'Cancel', cancel(20 + n), head({ budgetMs: 30_000 })));
    await ensureStreams(node, { tape: 'off', sizeFactor: 0.1 });
    await Promise.all(results);
    await gate.until(() => got.length === 25);
    expect(got).to.deep.equal(order(25));
    expect(events.map((event) => event.kind)).to.deep.equal(['added']);
  });

  it('dies with mail that nobody had read yet, in its memory: all of it is there again, and what was read is not given twice', async () => {
    await broker.stop();
    broker = await startBroker({ settings: { tape: 'off' } });
    const node = await broker.connect('node');
    sender = await broker.connect('gateway');
    reader = await broker.connect('decode');
    const [read, unread] = [fresh(), fresh()];
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const got: number[] = [];
    const note = (mail: { readonly type: string; readonly body: object }) => {
      got.push((mail.body as ReturnType<typeof cancel>).reply.num);
      gate.change();
    };
    const mailbox = await openMailbox(reader, read, note);
    const post = createPost(sender);
    await Promise.all(
      order(20).map((num) => post.command(from, num < 5 ? read : unread, 'Cancel', cancel(num), head())),
    );
    await gate.until(() => got.length === 5);
    await broker.kill();
    await stateOf(sender, 'down');
    await broker.restart();
    await stateOf(node, 'up');
    await ensureStreams(node, { tape: 'off', sizeFactor: 0.1 });
    await openMailbox(reader, unread, note);
    await gate.until(() => got.length === 20);
    await post.command(from, read, 'Cancel', cancel(20), head());
    await gate.until(() => got.length === 21);
    expect(mailbox.counters.duplicates).to.equal(5);
    expect(got).to.deep.equal(order(21));
    expect(post.outbox.counters).to.deep.include({ stored: 21, repeated: 20, refused: 0 });
    expect(post.outbox.messages).to.equal(0);
    expect(post.outbox.bytes).to.equal(0);
  });

  it('goes on taking mail when its stream is full: what was read, or what nobody reads, makes way', async () => {
    await broker.stop();
    broker = await startBroker({ settings: { sizeFactor: 0.000001 } });
    sender = await broker.connect('gateway');
    const [from, to, nobody] = [fresh('gateway', 'frontend'), fresh(), fresh()];
    const gate = new Gate();
    let heard = 0;
    await openMailbox(await broker.connect('decode'), to, () => {
      heard += 1;
      gate.change();
    });
    const post = createPost(sender);
    const bulk = { reply: { gateway: 'gw', num: 1 }, reason: 'x'.repeat(200) };
    // The stream holds 64 KiB; each round brings some 30.
    for (let round = 1; round <= 10; round++) {
      const sent = order(60).map((n) => post.command(from, n % 2 === 0 ? to : nobody, 'Cancel', bulk, head()));
      await Promise.all(sent);
      await gate.until(() => heard === round * 30);
    }
    expect(sender.state).to.equal('up');
  });

  it('has no room for a stream: its making is refused with NET_NO_ROOM', async () => {
    await broker.stop();
    broker = await startBroker({ streams: false, maxDiskBytes: 200 * 1024 * 1024 });
    const node = await broker.connect('node');
    expect(await codeOf(ensureStreams(node, { tape: 'full' }))).to.equal('NET_NO_ROOM');
  });

  it('forgets nothing of a registry whose leases ran out only because it was away', async () => {
    const leaseMs = 1_000;
    await broker.stop();
    broker = await startBroker({ settings: { leaseMs } });
    sender = await broker.connect('gateway');
    reader = await broker.connect('decode');
    const gate = new Gate();
    const events: InstanceEvent[] = [];
    const info = { component: 'decode', instance: 'd', node: 'n', host: 'h', pid: 1, draining: false } as const;
    const mine = announce(reader, { ...info, incarnation: 'one' }, { leaseMs });
    await watchInstances(
      sender,
      (event) => {
        events.push(event);
        gate.change();
      },
      { leaseMs },
    );
    await gate.until(() => events.length === 1);
    await broker.kill();
    await elapse(1.5 * leaseMs);
    await broker.restart();
    await stateOf(sender, 'up');
    // Six renewals are two leases: by then the entry would have been reported gone, had its end been believed.
    let renewals = 0;
    const watch = await sender.watch('instance.', ({ value }) => {
      if (value) renewals += 1;
      gate.change();
    });
    await gate.until(() => renewals >= 6);
    watch.stop();
    expect(events.map((event) => event.kind)).to.deep.equal(['added']);
    await mine.withdraw();
    await gate.until(() => events.length === 2);
  });

  it('keeps readers alive through ten restarts', async () => {
    const to = fresh();
    const from = fresh('gateway', 'frontend');
    const gate = new Gate();
    const got: number[] = [];
    await openMailbox(reader, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      gate.change();
    });
    const post = createPost(sender);
    for (const num of order(10)) {
      const sent = post.command(from, to, 'Cancel', cancel(num), head({ budgetMs: 30_000 }));
      await broker.restart();
      await sent;
    }
    await gate.until(() => got.length >= 10);
    expect(got).to.deep.equal(order(10));
  });
});

describe('The outbox', () => {
  const s = subjects('spec');

  /** A bus whose `store` answers as told. */
  function scripted(answer: (n: number, subject: string, id: string) => Promise<number>): Bus {
    const bus = createMemoryBroker({ namespace: 'spec' }).connect();
    let n = 0;
    return Object.create(bus, {
      store: { value: (subject: string, _d: Uint8Array, id: string) => answer(n++, subject, id) },
    });
  }

  it('refuses one command more than its bound, by messages and by bytes, and takes one again when one has left', async () => {
    let release: (seq: number) => void = () => {};
    const bus = scripted(() => new Promise((resolve) => (release = resolve)));
    const post = createPost(bus, { maxMessages: 3 });
    const from = fresh('gateway');
    const [a, b, c] = order(3).map((n) => post.command(from, fresh(), 'Cancel', cancel(n), head()));
    expect(await codeOf(post.command(from, fresh(), 'Cancel', cancel(3), head()))).to.equal('NET_OUTBOX_FULL');
    release(1);
    await c;
    const d = post.command(from, fresh(), 'Cancel', cancel(4), head());
    expect(post.outbox.messages).to.equal(3);
    post.close();
    release(2);
    await d;
    expect(await Promise.race([codeOf(a as Promise<void>), Promise.resolve('open')])).to.equal('open');
    void b;
    const small = createPost(bus, { maxBytes: 500 });
    void small.command(from, fresh(), 'Cancel', cancel(1), head());
    const large = { reply: { gateway: 'gw', num: 1 }, reason: 'x'.repeat(200) };
    expect(await codeOf(small.command(from, fresh(), 'Cancel', large, head()))).to.equal('NET_OUTBOX_FULL');
  });

  it('gives a command that was turned away a higher sequence number than one stored after it', async () => {
    const broker = createMemoryBroker({ namespace: 'spec' });
    const bus = broker.connect();
    const to = fresh();
    const turnedAway = new Set([`first`]);
    const wrapped: Bus = Object.create(bus, {
      store: {
        value(subject: string, data: Uint8Array, id: string, ms: number) {
          if (turnedAway.delete('first')) return bus.request(s.query(fresh()), data, ms).then(() => 0, missing);
          return bus.store(subject, data, id, ms);
        },
      },
    });
    async function missing(): Promise<number> {
      const { NetError } = await import('../../transport/index.js');
      throw new NetError('NET_NO_STREAM', { what: 'spec' });
    }
    const gate = new Gate();
    const got: number[] = [];
    const seqs: number[] = [];
    const box = await openMailbox(bus, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      seqs.push(mail.seq);
      gate.change();
    });
    const post = createPost(wrapped);
    const from = fresh('gateway');
    await Promise.all(order(3).map((n) => post.command(from, to, 'Cancel', cancel(n), head())));
    await gate.until(() => got.length === 3);
    expect(got).to.deep.equal([1, 2, 0]);
    expect(seqs).to.deep.equal([...seqs].sort((a, b) => a - b));
    expect(box.counters.duplicates).to.equal(0);
    box.stop();
    post.close();
  });

  it('drops a repeated sequence number at the reader, even under a new message id', async () => {
    const bus = createMemoryBroker({ namespace: 'spec' }).connect();
    const to = fresh();
    const gate = new Gate();
    let delivered = 0;
    const box = await openMailbox(bus, to, () => {
      delivered += 1;
      gate.change();
    });
    const mail = {
      v: 1,
      type: 'Cancel',
      id: 'x',
      from: fresh('gateway'),
      to,
      req: '',
      attempt: 1,
      budgetMs: 9,
      ts: 0,
      body: cancel(1),
    };
    for (const [n, seq] of [5, 5, 4, 6].entries())
      await bus.store(s.mail(to), encodeCbor({ ...mail, seq }), `${n}`, 1_000);
    await gate.until(() => delivered === 2);
    expect(box.counters).to.deep.include({ delivered: 2, duplicates: 2 });
    box.stop();
  });
});

describe('A connection whose reader has died', function () {
  this.timeout(30_000);

  it('is replaced by the watchdog, and everything that was read goes on being read', async () => {
    const broker = await startBroker();
    const bus = await broker.connect('decode');
    const sender = await broker.connect('gateway');
    const to = fresh();
    const gate = new Gate();
    const got: number[] = [];
    await openMailbox(bus, to, (mail) => {
      if (mail.type === 'Cancel') got.push(mail.body.reply.num);
      gate.change();
    });
    // Past every guard, straight at the library: this is what a callback of the bus must never do.
    bus.connection.subscribe('dyn.spec.down.>', {
      callback() {
        throw new Error('kills the reader');
      },
    });
    await bus.flush();
    const node = await broker.connect('node');
    node.send('dyn.spec.down.decode.x', new Uint8Array(1));
    await stateOf(bus, 'down');
    await stateOf(bus, 'up');
    await createPost(sender).command(fresh('gateway'), to, 'Cancel', cancel(1), head());
    await gate.until(() => got.length === 1);
    expect(bus.counters.reconnects).to.equal(1);
    await broker.stop();
  });
});

describe('A process that was frozen', function () {
  this.timeout(60_000);

  it('drops the mail that expired meanwhile, before it does anything, and reads the rest', async () => {
    const broker = await startBroker();
    const sender = await broker.connect('gateway');
    const to = fresh();
    const index = pathToFileURL(path.resolve(import.meta.dirname, '../../transport/index.js')).href;
    const code = `import { connectNats, openMailbox, readCredentials } from ${JSON.stringify(index)};
      const bus = await connectNats(readCredentials(${JSON.stringify(broker.server.credentialsFile('decode'))}));
      await openMailbox(bus, ${JSON.stringify(to)}, (mail) => console.log('mail', mail.body.reply.num), {
        onDropped: (code) => console.log(code),
      });
      console.log('open');`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const gate = new Gate();
    let output = '';
    child.stdout.on('data', (data) => {
      output += data;
      gate.change();
    });
    await gate.until(() => output.includes('open'));
    const post = createPost(sender);
    const from = fresh('gateway', 'frontend');
    const gateway = from.split('.')[1] as string;
    const refused: Envelope[] = [];
    listenFrames(sender, 'out', from, {
      message(news) {
        refused.push(news);
        gate.change();
      },
    });
    await post.command(from, to, 'Cancel', cancel(1), head());
    await gate.until(() => output.includes('mail 1'));
    child.kill('SIGSTOP');
    await post.command(from, to, 'Cancel', { ...cancel(2), reply: { gateway, num: 2 } }, head({ budgetMs: 200 }));
    await post.command(from, to, 'Cancel', cancel(3), head({ budgetMs: 60_000 }));
    await elapse(400);
    child.kill('SIGCONT');
    await gate.until(() => output.includes('mail 3') && refused.length > 0);
    expect(refused.map(({ body }) => body)).to.have.nested.property('[0].code', 'WRK_EXPIRED');
    expect(output.trim().split('\n')).to.deep.equal(['open', 'mail 1', 'NET_EXPIRED', 'mail 3']);
    child.kill('SIGKILL');
    await broker.stop();
  });
});
