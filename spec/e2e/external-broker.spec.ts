import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { natsBinary } from '../transport/kit.js';
import { ask } from './client.js';
import { beginNode, endNodes, ready, type TestNode, until, untilIdle } from './node-kit.js';

const body = { prompt: 'question with a few words more', max_tokens: 80, ignore_eos: true, seed: 7, stream: true };

describe('A node whose broker is somebody else’s', function () {
  this.timeout(120_000);
  let folder: string;
  let port = 0;
  let server: ChildProcess | undefined;

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-external-'));
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    port = (probe.address() as { port: number }).port;
    probe.close();
    await once(probe, 'close');
  });
  after(async () => {
    await endNodes();
    await kill();
    rmSync(folder, { recursive: true, force: true });
  });

  const start = (...flags: string[]) => {
    server = spawn(natsBinary(), ['-a', '127.0.0.1', '-p', String(port), ...flags], { stdio: 'ignore' });
  };
  const jetstream = ['-js', '-sd'];
  async function kill(): Promise<void> {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return;
    const gone = once(server, 'exit');
    server.kill('SIGKILL');
    await gone;
  }
  const refused = (node: TestNode) =>
    until('a refusal', async () => {
      const { status, retryAfter, error } = await ask(node.url, { ...body, max_tokens: 2 });
      return status === 503 && { retryAfter, error };
    });

  it('waits for it, first for any and then for JetStream; streams outlive it, and others hear 503 until it has JetStream again', async () => {
    const env = { DYNACT_MOCK_STEP_MS: '20' };
    const node = await beginNode(['--nats', `nats://127.0.0.1:${port}`], { env });
    start();
    await until('word of the broker without JetStream', () => node.log().includes('JetStream'));
    expect(node.url).to.equal('');
    await kill();
    start(...jetstream, folder);
    await ready(node);

    const undisturbed = await ask(node.url, body);
    expect(undisturbed).to.include({ status: 200, finish: 'length', done: true });
    let begun = () => {};
    const running = new Promise<void>((resolve) => {
      begun = resolve;
    });
    const stream = ask(node.url, body, { onText: (text) => text !== '' && begun() });
    await running;
    await kill();
    const away = await refused(node);
    start();
    const bare = await refused(node);
    expect(Number(away.retryAfter)).to.be.within(1, 60);
    expect(bare).to.deep.equal(away);
    await kill();
    start(...jetstream, folder);
    expect(await stream).to.deep.equal(undisturbed);
    expect(
      await until('an answer', async () => {
        const answer = await ask(node.url, body);
        return answer.status === 200 && answer;
      }),
    ).to.deep.equal(undisturbed);
    await untilIdle(node);
    const { processes } = await node.status();
    expect(processes.map(({ restarts }) => restarts).filter((restarts) => restarts > 0)).to.deep.equal([]);
    expect(await node.stop()).to.equal(0);
  });
});
