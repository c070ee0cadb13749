/** The broker is there and says nothing, cannot be reached, comes without JetStream, or comes last of all. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import {
  connectNats,
  createPost,
  ensureStreams,
  isNetError,
  type NatsBus,
  openMailbox,
  purgeMail,
  subjects,
} from '../../transport/index.js';
import { type Broker, codeOf, elapse, fresh, Gate, head, natsBinary, startBroker, stateOf } from './kit.js';

const cancel = (num: number) => ({ reply: { gateway: 'gw', num }, reason: '' });
const order = (n: number) => Array.from({ length: n }, (_, num) => num);

/** Notes the numbers of the commands that arrive. */
async function reads(bus: NatsBus, to: ReturnType<typeof fresh>, gate: Gate): Promise<number[]> {
  const got: number[] = [];
  await openMailbox(bus, to, (mail) => {
    if (mail.type === 'Cancel') got.push(mail.body.reply.num);
    gate.change();
  });
  return got;
}

/** A network between a client and the broker, which can swallow everything or break. */
class Network {
  private readonly pairs = new Set<[Socket, Socket]>();
  private server: Server | undefined;
  /** Connections stay, and nothing passes. */
  swallows = false;
  port = 0;

  constructor(private readonly target: number) {}

  async open(): Promise<void> {
    this.server = createServer((client) => {
      const far = connect({ host: '127.0.0.1', port: this.target });
      const pair: [Socket, Socket] = [client, far];
      this.pairs.add(pair);
      const join = (from: Socket, to: Socket) => {
        from.on('data', (bytes) => {
          if (!this.swallows) to.write(bytes);
        });
        from.on('error', () => {});
        from.on('close', () => {
          to.destroy();
          this.pairs.delete(pair);
        });
      };
      join(client, far);
      join(far, client);
    });
    await new Promise<void>((resolve) => this.server?.listen(this.port, '127.0.0.1', resolve));
    this.port = (this.server.address() as { port: number }).port;
  }

  /** Breaks every connection, and refuses new ones. */
  async cut(): Promise<void> {
    for (const [client] of this.pairs) client.resetAndDestroy();
    await new Promise((resolve) => this.server?.close(resolve));
  }
}

describe('A broker that says nothing', function () {
  this.timeout(60_000);
  let broker: Broker;

  before(async () => {
    broker = await startBroker();
  });
  after(() => broker.stop());

  it('is known to be down soon with the defaults, and up again when it thaws', async () => {
    const { url, namespace, user, password } = broker.server.credentials('gateway');
    const bus = await connectNats({ url, namespace, user, password });
    const since = performance.now();
    broker.freeze();
    try {
      await stateOf(bus, 'down');
      // Not before a second of silence; how soon after it is for a machine that has time to say.
      expect(performance.now() - since).to.be.above(700);
    } finally {
      broker.thaw();
    }
    await stateOf(bus, 'up');
    await bus.close();
  });

  it('keeps the connection of a client that waits, and what was on its way arrives', async () => {
    const [sender, reader] = [await broker.connect('gateway'), await broker.connect('decode')];
    const gate = new Gate();
    const to = fresh();
    const got = await reads(reader, to, gate);
    const post = createPost(sender);
    const from = fresh('gateway', 'frontend');
    const client = sender.connection.info?.client_id;
    broker.freeze();
    const sent = order(50).map((num) => post.command(from, to, 'Cancel', cancel(num), head()));
    await Promise.all([stateOf(sender, 'down'), stateOf(reader, 'down')]);
    broker.thaw();
    await Promise.all(sent);
    await gate.until(() => got.length === 50);
    expect(got).to.deep.equal(order(50));
    expect(sender.connection.info?.client_id).to.equal(client);
  });

  it('is not blamed for a busy process: one that stood still for twice the time hears the answer first', async () => {
    const bus = await broker.connect('gateway');
    let downs = 0;
    bus.onState((state) => {
      if (state === 'down') downs += 1;
    });
    await elapse(300);
    const until = performance.now() + 1_200;
    while (performance.now() < until);
    await elapse(300);
    expect([bus.state, downs]).to.deep.equal(['up', 0]);
  });
});

describe('A broker that cannot be reached', function () {
  this.timeout(60_000);
  let broker: Broker;
  let network: Network;
  let far: NatsBus;
  let near: NatsBus;

  beforeEach(async () => {
    broker = await startBroker();
    network = new Network(broker.server.port);
    await network.open();
    far = await broker.connect('gateway', { url: `nats://127.0.0.1:${network.port}` });
    near = await broker.connect('decode');
  });
  afterEach(async () => {
    network.swallows = false;
    await broker.stop();
    await network.cut();
  });

  for (const [how, away, back] of [
    [
      'whose packets vanish',
      () => {
        network.swallows = true;
      },
      async () => {
        network.swallows = false;
      },
    ],
    ['whose connections are reset and refused', () => network.cut(), () => network.open()],
  ] as const) {
    it(`${how} for seconds: commands wait within their bound, arrive once and in order, and reading goes on`, async () => {
      const gate = new Gate();
      const [there, here] = [fresh(), fresh('gateway', 'frontend')];
      const [got, own] = [await reads(near, there, gate), [] as number[]];
      far.subscribe(subjects('spec').out('gw'), (bytes) => {
        own.push(bytes[0] as number);
        gate.change();
      });
      await far.flush();
      const post = createPost(far, { maxMessages: 100 });
      await post.command(here, there, 'Cancel', cancel(0), head());
      await away();
      const sent = order(99).map((n) => post.command(here, there, 'Cancel', cancel(1 + n), head({ budgetMs: 30_000 })));
      await stateOf(far, 'down');
      sent.push(post.command(here, there, 'Cancel', cancel(100), head({ budgetMs: 30_000 })));
      expect(await codeOf(post.command(here, there, 'Cancel', cancel(101), head()))).to.equal('NET_OUTBOX_FULL');
      await elapse(3_000);
      await back();
      await stateOf(far, 'up');
      await Promise.all(sent);
      await gate.until(() => got.length >= 101);
      expect(got).to.deep.equal(order(101));
      near.send(subjects('spec').out('gw'), Uint8Array.of(7));
      await gate.until(() => own.length === 1);
      expect(post.outbox.messages).to.equal(0);
    });
  }
});

describe('A reader whose consumer the broker has lost', function () {
  this.timeout(30_000);

  it('notices the missing heartbeats, reads on where it was, and gives nothing twice', async () => {
    const broker = await startBroker();
    try {
      const [node, sender, reader] = [
        await broker.connect('node'),
        await broker.connect('gateway'),
        await broker.connect('decode'),
      ];
      const gate = new Gate();
      const [to, from] = [fresh(), fresh('gateway', 'frontend')];
      const got = await reads(reader, to, gate);
      const post = createPost(sender);
      for (const num of order(5)) await post.command(from, to, 'Cancel', cancel(num), head());
      await gate.until(() => got.length === 5);
      const stream = subjects('spec').stream('MAIL');
      for await (const { name } of node.manager.consumers.list(stream))
        await node.manager.consumers.delete(stream, name);
      for (const n of order(5)) await post.command(from, to, 'Cancel', cancel(5 + n), head());
      await gate.until(() => got.length >= 10);
      expect(got).to.deep.equal(order(10));
      expect(reader.state).to.equal('up');
    } finally {
      await broker.stop();
    }
  });
});

describe('A broker that comes without JetStream', function () {
  this.timeout(60_000);
  let dir: string;
  let server: ChildProcess | undefined;
  let port = 0;

  before(async () => {
    dir = mkdtempSync(path.join(tmpdir(), 'dynact-plain-'));
    port = await new Promise<number>((resolve) => {
      const probe = createServer().listen(0, '127.0.0.1', () => {
        const found = (probe.address() as { port: number }).port;
        probe.close(() => resolve(found));
      });
    });
  });
  after(() => rmSync(dir, { recursive: true, force: true }));
  afterEach(stop);

  const url = () => `nats://127.0.0.1:${port}`;
  function start(jetstream: boolean): void {
    const more = jetstream ? ['-js', '-sd', dir] : [];
    server = spawn(natsBinary(), ['-a', '127.0.0.1', '-p', String(port), ...more], { stdio: 'ignore' });
  }
  async function stop(): Promise<void> {
    if (server?.exitCode !== null || server.signalCode !== null) return;
    const gone = new Promise((resolve) => server?.once('exit', resolve));
    server.kill('SIGKILL');
    await gone;
  }

  it('is refused at once with what to do about it, or waited for with the same words', async () => {
    start(false);
    const refused = await connectNats({ url: url(), namespace: 'spec' }).catch((error: unknown) => error);
    if (!isNetError(refused, 'NET_NO_JETSTREAM')) throw new Error(`not refused: ${refused}`);
    expect(refused.message).to.contain(url()).and.to.contain('-js');
    const told: unknown[] = [];
    const connecting = connectNats({
      url: url(),
      namespace: 'spec',
      patient: true,
      connectTimeoutMs: 30_000,
      onProblem: (_, error) => told.push(error),
    });
    while (told.length === 0) await elapse(20);
    await stop();
    start(true);
    const bus = await connecting;
    expect(told.filter((error) => isNetError(error, 'NET_NO_JETSTREAM'))).to.have.length(1);
    await ensureStreams(bus, { sizeFactor: 0.001 });
    await bus.close();
  });

  it('is waited for when it comes last of all', async () => {
    const connecting = connectNats({ url: url(), namespace: 'spec', patient: true, connectTimeoutMs: 30_000 });
    await elapse(300);
    start(true);
    const bus = await connecting;
    expect(bus.state).to.equal('up');
    await bus.close();
  });

  it('is waited for no longer once the wait is called off', async () => {
    const gone = new AbortController();
    const since = performance.now();
    const connecting = connectNats({
      url: url(),
      namespace: 'spec',
      patient: true,
      connectTimeoutMs: 30_000,
      signal: gone.signal,
      onProblem: () => gone.abort(),
    });
    expect(await codeOf(connecting)).to.equal('NET_CLOSED');
    expect(performance.now() - since).to.be.lessThan(5_000);
  });

  it('is down for those who use it, who say why, and up when it has JetStream again', async () => {
    start(true);
    const told: string[] = [];
    const bus = await connectNats({
      url: url(),
      namespace: 'spec',
      patient: true,
      silentMs: 300,
      onProblem: (_, error) => told.push((error as { code: string }).code),
    });
    await ensureStreams(bus, { sizeFactor: 0.001 });
    await stop();
    await stateOf(bus, 'down');
    start(false);
    while (!told.includes('NET_NO_JETSTREAM')) await elapse(20);
    expect(bus.state).to.equal('down');
    await stop();
    start(true);
    await stateOf(bus, 'up');
    await bus.close();
  });
});

describe('Mail of an incarnation that is gone', function () {
  this.timeout(30_000);

  it('is purged by the node, and no other mail with it', async () => {
    const broker = await startBroker();
    try {
      const [node, sender] = [await broker.connect('node'), await broker.connect('gateway')];
      const [dead, alive] = [fresh('decode'), fresh('decode')];
      const post = createPost(sender);
      for (const to of [dead, alive]) await post.command(fresh('gateway'), to, 'Cancel', cancel(1), head());
      const [component, incarnation] = dead.split('.') as ['decode', string];
      await purgeMail(node, component, incarnation);
      const s = subjects('spec');
      const { state } = await node.manager.streams.info(s.stream('MAIL'), { subjects_filter: s.all('mail') });
      expect(Object.keys(state.subjects ?? {})).to.deep.equal([s.mail(alive)]);
      expect(await codeOf(purgeMail(sender, component, incarnation))).to.not.equal('resolved');
    } finally {
      await broker.stop();
    }
  });
});
