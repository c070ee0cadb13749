import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { type NodeStatus, nodeStatus, type ProcessStatus, stopNode } from '../../supervisors/index.js';
import { isAlive, startTime } from '../../supervisors/state-dir.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
/** Starting four Node processes takes a while on a machine that does other things, too. */
const patienceMs = 60_000;

class NodeUnderTest {
  stdout = '';
  stderr = '';
  readonly closed: Promise<unknown>;
  private constructor(
    readonly folder: string,
    readonly process: ChildProcess,
  ) {
    process.stdout?.on('data', (data) => {
      this.stdout += data;
    });
    process.stderr?.on('data', (data) => {
      this.stderr += data;
    });
    this.closed = once(process, 'close');
  }

  static run(folder: string, ...flags: string[]): NodeUnderTest {
    const all = ['up', '--engine', 'mock', '--speedup', '0', '--port', '0', '--log-format', 'json', ...flags];
    return new NodeUnderTest(folder, spawn(process.execPath, [cli, ...all], { cwd: folder }));
  }

  get stateDir(): string {
    return join(this.folder, '.dynact');
  }

  async ready(): Promise<string> {
    const url = await until(() => {
      if (this.process.exitCode !== null) throw new Error(`it ended: ${this.stderr}`);
      return /^dynact ready (\S+) \(.*\)\n/.exec(this.stdout)?.[1];
    });
    return url;
  }

  status(): Promise<NodeStatus> {
    return nodeStatus(this.stateDir, patienceMs);
  }

  async processOf(instance: string): Promise<ProcessStatus> {
    const found = (await this.status()).processes.find((process) => process.instance === instance);
    if (!found) throw new Error(`no process ${instance}`);
    return found;
  }
}

/** Asks until there is an answer: the state asked for is another process's, which tells nobody that it changed. */
async function until<T>(question: () => Promise<T | undefined | false> | T | undefined | false): Promise<T> {
  const deadline = performance.now() + patienceMs;
  for (;;) {
    const answer = await question();
    if (answer !== undefined && answer !== false) return answer;
    if (performance.now() > deadline) throw new Error(`not within ${patienceMs} ms: ${question}`);
    await sleep(20);
  }
}

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

describe('A node of real processes', function () {
  this.timeout(3 * patienceMs);
  let folder: string;
  let node: NodeUnderTest;
  const others: NodeUnderTest[] = [];

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'dynact-node-'));
  });
  afterEach(async () => {
    for (const one of [node, ...others.splice(0)]) {
      one.process.kill('SIGKILL');
      await one.closed;
    }
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 });
  });

  it('serves, replaces a killed worker under a new name, and ends without a trace on SIGTERM', async () => {
    node = NodeUnderTest.run(folder, '--gateway', '2');
    const url = await node.ready();
    expect(node.stdout).to.match(/^dynact ready http:\/\/127\.0\.0\.1:\d+ \(model mock, prefill 1, decode 1\)\n$/);
    const before = await complete(url);

    const status = await node.status();
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
    process.kill(dead.pid as number, 'SIGKILL');
    const next = await until(async () => {
      const now = await node.processOf('decode-0');
      return now.state === 'up' && now.restarts === 1 && now;
    });
    expect(next.incarnation > dead.incarnation).to.equal(true);
    expect(next.lastReason).to.equal('signal SIGKILL');
    expect(await complete(url)).to.equal(before);

    const running = pids(await node.status());
    expect(running.length).to.equal(6);
    node.process.kill('SIGTERM');
    await node.closed;
    expect(node.process.exitCode).to.equal(0);
    expect(running.filter(isAlive)).to.deep.equal([]);
    expect(await readFile(join(node.stateDir, 'node.lock')).catch(() => 'released')).to.equal('released');
    expect(node.stdout.trim().split('\n').length).to.equal(1);
  });

  it('leaves nothing running when it is killed, and its folder can be used again', async () => {
    node = NodeUnderTest.run(folder);
    await node.ready();
    const left = pids(await node.status()).filter(({ pid }) => pid !== node.process.pid);
    expect(left.length).to.equal(4);
    node.process.kill('SIGKILL');
    await node.closed;
    await until(() => left.every((process) => !isAlive(process)));
    const again = NodeUnderTest.run(folder);
    others.push(again);
    await complete(await again.ready());
    await stopNode(again.stateDir, false, patienceMs);
    await again.closed;
    expect(again.process.exitCode).to.equal(0);
  });

  it('restarts a killed nats-server on its port, and serves again', async () => {
    node = NodeUnderTest.run(folder);
    const url = await node.ready();
    const before = await complete(url);
    const { natsUrl } = await node.status();
    process.kill((await node.processOf('nats')).pid as number, 'SIGKILL');
    await until(async () => {
      const { state, restarts } = await node.processOf('nats');
      return state === 'up' && restarts === 1;
    });
    expect((await node.status()).natsUrl).to.equal(natsUrl);
    const after = await until(() => complete(url).catch(() => undefined));
    expect(after).to.equal(before);
    node.process.kill('SIGINT');
    await node.closed;
    expect(node.process.exitCode).to.equal(0);
  });

  it('refuses a second node in its folder, naming the first, and a port that is taken, naming the way out', async () => {
    node = NodeUnderTest.run(folder, '--prefill', '0');
    await node.ready();
    const second = NodeUnderTest.run(folder);
    others.push(second);
    await second.closed;
    expect(second.process.exitCode).to.equal(1);
    expect(second.stderr).to.contain(`pid ${node.process.pid}`).and.contain('--state-dir');
    expect((await node.status()).processes.every(({ state }) => state === 'up')).to.equal(true);

    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as { port: number };
    const third = NodeUnderTest.run(folder, '--state-dir', 'other', '--port', String(port));
    others.push(third);
    await third.closed;
    taken.close();
    expect(third.process.exitCode).to.equal(1);
    expect(third.stderr).to.contain(`port ${port}`).and.contain('DYNACT_HTTP_PORT');
    await stopNode(node.stateDir, true, patienceMs);
    await node.closed;
  });
});
