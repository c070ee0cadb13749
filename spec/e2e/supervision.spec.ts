import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { injectFault, type ProcessStatus } from '../../supervisors/index.js';
import { type Answer, ask } from './client.js';
import { endNodes, startNode, survivors, type TestNode, until, untilIdle } from './node-kit.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const clients = 8;
/** 20 ms a step: 40 tokens take 0.8 s. */
const env = { DYNACT_MOCK_STEP_MS: '20' };
/** Long enough for the status, which is up to 0.75 s old, to show all of them at once. */
const long = 200;

const body = (client: number, tokens = 40) => ({
  prompt: `question ${client} with a few words more`,
  max_tokens: tokens,
  ignore_eos: true,
  seed: 100 + client,
  stream: true,
});

/** Clients that ask the same again and again, one answer after the other. */
class Load {
  readonly answers: Answer[][] = Array.from({ length: clients }, () => []);
  private going = true;
  private readonly running: Promise<void>[];

  constructor(url: string) {
    this.running = this.answers.map(async (mine, client) => {
      while (this.going) mine.push(await ask(url, body(client)));
    });
  }

  get count(): number {
    return this.answers.reduce((sum, mine) => sum + mine.length, 0);
  }

  /** Resolves when every client has its last answer. Rejects if any answer was not whole and the same as all others. */
  async end(): Promise<void> {
    this.going = false;
    await Promise.all(this.running);
    for (const mine of this.answers) {
      for (const answer of mine)
        expect(answer).to.deep.equal({ ...mine[0], done: true, finish: 'length', error: null });
    }
  }
}

async function dynact(node: TestNode, ...args: string[]) {
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    execFile(process.execPath, [cli, ...args, '--state-dir', node.stateDir], (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stdout, stderr });
    });
  });
}

/** From now on notes in which order processes end; the result has the roles of those that have. */
function endsOf(node: TestNode, processes: readonly ProcessStatus[]): () => readonly string[] {
  const ended: string[] = [];
  const timer = setInterval(() => {
    const left = new Set(survivors(node).map(({ pid }) => pid));
    for (const { role, pid } of processes)
      if (pid !== null && !left.has(pid) && !ended.includes(role)) ended.push(role);
  }, 20);
  return () => {
    clearInterval(timer);
    return ended;
  };
}

describe('Supervision of a node under load', function () {
  this.timeout(180_000);
  afterEach(endNodes);

  const replaced = (node: TestNode, instance: string, lives: number) =>
    until(`${instance} being replaced`, async () => {
      const now = await node.processOf(instance);
      return now.state === 'up' && now.restarts === lives && now;
    });

  it('replaces the only worker of each kind, and the only gateway, one after the other, and loses nothing', async () => {
    const node = await startNode([], { env });
    const load = new Load(node.url);
    await until('load', () => load.count > clients);
    // A gateway that takes leave says so itself, while the other one serves. Nobody else may make the node unready.
    const unready = new Set<string>();
    const probe = setInterval(() => {
      void fetch(`${node.url}/ready`)
        .then(async (response) => response.ok || unready.add(await response.text()))
        .catch((error) => unready.add(String(error)));
    }, 50);
    const { code, stdout, stderr } = await dynact(node, 'restart', '--rolling', '--all', '--json');
    clearInterval(probe);
    expect([code, stderr]).to.deep.equal([0, '']);
    const steps = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { instance: string; step: string });
    expect(steps.map(({ instance, step }) => `${instance} ${step}`)).to.deep.equal(
      ['prefill', 'decode', 'gateway'].flatMap((role) => [
        `${role}-1 stand-in up`,
        `${role}-0 draining`,
        `${role}-0 up`,
        `${role}-1 stand-in ended`,
      ]),
    );
    await load.end();
    expect([...unready].filter((answer) => !answer.includes('"draining"'))).to.deep.equal([]);
    const { processes } = await node.status();
    expect(processes.map(({ instance, restarts }) => [instance, restarts]).slice(1)).to.deep.equal([
      ['nats', 0],
      ['prefill-0', 1],
      ['decode-0', 1],
      ['gateway-0', 1],
    ]);
    await untilIdle(node);
    const unknown = await dynact(node, 'restart', 'decode-7');
    expect(unknown.code).to.equal(1);
    expect(unknown.stderr).to.contain('decode-7').and.contain('decode-0');
  });

  it('lets a worker and a gateway that are told to end by hand finish what they do, and replaces them', async () => {
    const node = await startNode(['--gateway', '2'], { env });
    const load = new Load(node.url);
    for (const instance of ['decode-0', 'prefill-0', 'gateway-0']) {
      const before = load.count;
      await until('load', () => load.count > before + clients);
      await node.kill(instance, 'SIGTERM');
      expect((await replaced(node, instance, 1)).lastReason).to.equal('exit code 0');
    }
    await load.end();
    await untilIdle(node);
  });

  it('finishes what runs when the node is told to end, and ends at once when told twice', async () => {
    const node = await startNode([], { env });
    const all = () => Promise.all(Array.from({ length: clients }, (_, client) => ask(node.url, body(client, long))));
    const running = all();
    const busy = (count: number) =>
      until('requests in flight', async () => (await node.processOf('decode-0')).facts.inFlight === count);
    await busy(clients);
    const ends = endsOf(node, (await node.status()).processes);
    node.process.kill('SIGTERM');
    for (const { finish, done, error } of await running)
      expect([finish, done, error]).to.deep.equal(['length', true, null]);
    await until('the end', () => node.process.exitCode === 0);
    expect(survivors(node)).to.deep.equal([]);
    expect(ends(), 'who asks ends before who serves, and all before what they need').to.deep.equal([
      'gateway',
      'decode',
      'prefill',
      'nats',
      'node',
    ]);

    const impatient = await startNode([], { env: { DYNACT_MOCK_STEP_MS: '1000' } });
    const cut = ask(impatient.url, body(0));
    await until('a request in flight', async () => (await impatient.processOf('decode-0')).facts.inFlight === 1);
    const since = performance.now();
    impatient.process.kill('SIGTERM');
    await until('draining', async () => (await impatient.processOf('gateway-0')).state === 'draining');
    impatient.process.kill('SIGTERM');
    expect((await cut).error).to.equal('cut');
    await until('the end', () => impatient.process.exitCode !== null);
    expect(performance.now() - since).to.be.below(5_000);
    expect(survivors(impatient)).to.deep.equal([]);
  });

  it('finishes what runs when the node supervisor is killed; then nothing is left, and the next node starts', async () => {
    const node = await startNode([], { env });
    const running = Promise.all(Array.from({ length: clients }, (_, client) => ask(node.url, body(client, long))));
    await until('requests in flight', async () => (await node.processOf('decode-0')).facts.inFlight === clients);
    node.process.kill('SIGKILL');
    for (const { finish, done, error } of await running)
      expect([finish, done, error]).to.deep.equal(['length', true, null]);
    const next = await startNode([], { env, folder: node.folder });
    expect(survivors(node).filter(({ pid }) => pid !== node.process.pid)).to.deep.equal([]);
    expect((await ask(next.url, body(0))).finish).to.equal('length');
    expect(await next.stop()).to.equal(0);
  });

  it('kills a worker whose engine is wedged behind a live event loop, and loses nothing', async () => {
    const wedges = { ...env, DYNACT_FAULTS_ENABLED: 'true', DYNACT_NODE_STUCK_MS: '3000' };
    const node = await startNode(['--decode', '2'], { env: wedges });
    const load = new Load(node.url);
    await until('load', () => load.count > clients);
    await injectFault(node.stateDir, 'decode-1', { kind: 'wedge' });
    const { lastReason } = await replaced(node, 'decode-1', 1);
    expect(lastReason).to.match(/^signal SIGKILL: the engine took no step for \d+ ms with work queued$/);
    await load.end();
    await untilIdle(node);
  });

  it('lets a broker thaw that is frozen for 5 s, and restarts one that stays frozen', async () => {
    const node = await startNode([], { env: { ...env, DYNACT_NATS_SILENT_MS: '7000' } });
    const { pid } = await node.processOf('nats');
    const load = new Load(node.url);
    await until('load', () => load.count > clients);
    process.kill(pid as number, 'SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 5_000));
    process.kill(pid as number, 'SIGCONT');
    const before = load.count;
    await until('answers after the thaw', () => load.count > before + clients);
    expect(await node.processOf('nats')).to.include({ pid, restarts: 0 });
    await load.end();
    process.kill(pid as number, 'SIGSTOP');
    const { lastReason } = await replaced(node, 'nats', 1);
    expect(lastReason).to.equal('signal SIGKILL: silent for 7000 ms');
    expect(
      (
        await until('an answer', async () => {
          const answer = await ask(node.url, body(0));
          return answer.status === 200 && answer;
        })
      ).finish,
    ).to.equal('length');
  });

  it('shows a crash loop as one, waits longer each time, and keeps the rest of the node', async () => {
    const node = await startNode([], { env });
    for (let life = 0; life < 4; life++) {
      await until(`life ${life}`, async () => (await node.processOf('decode-0')).restarts === life);
      await node.kill('decode-0');
    }
    const shown = await until('the back-off', async () => {
      const now = await node.processOf('decode-0');
      return now.retryMs !== null && now;
    });
    expect(shown).to.include({ state: 'restarting', failures: 4, lastReason: 'signal SIGKILL' });
    const { stdout } = await dynact(node, 'status');
    expect(stdout).to.match(/decode-0 +(restarting|up) .*\(crash loop: 4 failures/);
    await replaced(node, 'decode-0', 4);
    expect((await ask(node.url, body(0))).finish).to.equal('length');
    const { processes } = await node.status();
    expect(processes.map(({ restarts }) => restarts)).to.deep.equal([0, 0, 0, 4, 0]);
  });
});
