import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { expect } from 'chai';
import { type NodeStatus, stopNode } from '../../supervisors/index.js';
import { isAlive, startTime } from '../../supervisors/state-dir.js';
import { address, connectNats, readCredentials, subjects } from '../../transport/index.js';
import { endNodes, failToStart, patienceMs, startNode, type TestNode, until } from '../e2e/node-kit.js';

const quick = ['--speedup', '0'];
const identity = (pid: number) => ({ pid, startedAt: startTime(pid) });
const pids = (status: NodeStatus) => status.processes.flatMap(({ pid }) => (pid === null ? [] : [identity(pid)]));

async function complete(url: string): Promise<string> {
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'mock', prompt: 'one two three', max_tokens: 8, seed: 7 }),
    signal: AbortSignal.timeout(patienceMs),
  });
  if (response.status !== 200) throw new Error(`${response.status}: ${await response.text()}`);
  return ((await response.json()) as { choices: { text: string }[] }).choices[0]?.text as string;
}

/** Puts something into a worker's mailbox that is no mail. */
async function sendNonsense(node: TestNode, incarnation: string): Promise<void> {
  const { url, user, password } = readCredentials(join(node.stateDir, 'nats/credentials/gateway.json'));
  const bus = await connectNats({ url, user, password, namespace: 'dynact', name: 'spec' });
  await bus.store(
    subjects('dynact').mail(address('decode', incarnation, 'worker')),
    new Uint8Array([1, 2, 3]),
    'x',
    5_000,
  );
  await bus.close();
}

describe('A node of real processes', function () {
  this.timeout(3 * patienceMs);
  afterEach(endNodes);

  it('serves, replaces a killed worker under a new name, and ends without a trace on SIGTERM', async () => {
    const node = await startNode([...quick, '--gateway', '2']);
    expect(node.output()).to.match(/^dynact ready http:\/\/127\.0\.0\.1:\d+ \(model mock, prefill 1, decode 1\)\n$/);
    const before = await complete(node.url);

    // Each process says twice a second how it is.
    const status = await until('the memory of all', async () => {
      const now = await node.status();
      return now.processes.every(({ rssBytes }) => rssBytes > 1_000_000) && now;
    });
    expect(status.processes.map(({ role }) => role)).to.deep.equal([
      'node',
      'nats',
      'prefill',
      'decode',
      'gateway',
      'gateway',
    ]);
    for (const { state, restarts, pid } of status.processes) {
      expect([state, restarts]).to.deep.equal(['up', 0]);
      expect(isAlive(identity(pid as number))).to.equal(true);
    }

    const dead = await node.processOf('decode-0');
    await sendNonsense(node, dead.incarnation);
    await until('the dead letter', async () => (await node.status()).deadLetters === 1);
    process.kill(dead.pid as number, 'SIGKILL');
    const next = await until('the next life', async () => {
      const now = await node.processOf('decode-0');
      return now.state === 'up' && now.restarts === 1 && now;
    });
    expect(next.incarnation > dead.incarnation).to.equal(true);
    expect(next.lastReason).to.equal('signal SIGKILL');
    expect(await complete(node.url)).to.equal(before);

    const running = pids(await node.status());
    expect(running.length).to.equal(6);
    expect(await node.stop()).to.equal(0);
    expect(running.filter(isAlive)).to.deep.equal([]);
    expect(await readFile(join(node.stateDir, 'node.lock')).catch(() => 'released')).to.equal('released');
    expect(node.output().trim().split('\n').length).to.equal(1);
  });

  it('serves on while its supervisor is frozen, leaves nothing running when that is killed, and its folder can be used again', async () => {
    const node = await startNode(quick);
    const left = pids(await node.status()).filter(({ pid }) => pid !== node.process.pid);
    expect(left.length).to.equal(4);
    node.process.kill('SIGSTOP');
    const before = await complete(node.url);
    await node.stop('SIGKILL');
    await until('the end of all', () => left.every((process) => !isAlive(process)));
    const again = await startNode(quick, { folder: node.folder });
    expect(await complete(again.url)).to.equal(before);
    await stopNode(again.stateDir, false, patienceMs);
    expect(await again.stop()).to.equal(0);
  });

  it('restarts a killed nats-server on its port, and serves again', async () => {
    const node = await startNode(quick);
    const before = await complete(node.url);
    const { natsUrl } = await node.status();
    await node.kill('nats');
    await until('the next life', async () => {
      const { state, restarts } = await node.processOf('nats');
      return state === 'up' && restarts === 1;
    });
    expect((await node.status()).natsUrl).to.equal(natsUrl);
    const after = await until('an answer', () => complete(node.url).catch(() => undefined));
    expect(after).to.equal(before);
    expect(await node.stop('SIGINT')).to.equal(0);
  });

  it('refuses a second node in its folder, naming the first, and a port that is taken, naming the way out', async () => {
    const node = await startNode([...quick, '--prefill', '0']);
    const second = await failToStart(quick, { folder: node.folder });
    expect(second.code).to.equal(1);
    expect(second.log).to.contain(`pid ${node.process.pid}`).and.contain('--state-dir');
    expect((await node.status()).processes.every(({ state }) => state === 'up')).to.equal(true);

    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as { port: number };
    const third = await failToStart([...quick, '--state-dir', 'other', '--port', String(port)], {
      folder: node.folder,
    });
    taken.close();
    expect(third.code).to.equal(1);
    expect(third.log).to.contain(`port ${port}`).and.contain('DYNACT_HTTP_PORT');
    await stopNode(node.stateDir, true, patienceMs);
  });
});
