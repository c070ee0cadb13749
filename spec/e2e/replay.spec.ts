import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { ask } from './client.js';
import { endNodes, startNode, type TestNode } from './node-kit.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const run = promisify(execFile);

interface Replayed {
  readonly actor: string;
  readonly same: number;
  readonly outcome: string;
  readonly why?: string;
}

describe('dynact replay', function () {
  this.timeout(60_000);
  let node: TestNode;
  afterEach(endNodes);

  async function replayed(...args: string[]): Promise<{ readonly code: number; readonly lives: readonly Replayed[] }> {
    const [code, stdout] = await run(process.execPath, [cli, 'replay', ...args, '--json']).then(
      (ended) => [0, ended.stdout] as const,
      (failed: { code: number; stdout: string }) => [failed.code, failed.stdout] as const,
    );
    return { code, lives: JSON.parse(stdout) as Replayed[] };
  }
  const nameOf = ({ actor }: Replayed) => actor.split('.').at(-1);

  it('runs the actors of a gateway again, from a live node and from a file, and they do what they did', async () => {
    node = await startNode(['--tape', 'full', '--prefill', '1', '--decode', '1', '--gateway', '1']);
    const bodies = Array.from({ length: 24 }, (_, index) => ({
      prompt: `Question ${index}: what was that?`,
      max_tokens: 12,
      stream: index % 2 === 0,
    }));
    const answers = await Promise.all(bodies.map((body) => ask(node.url, body)));
    expect(answers.every(({ done }) => done)).to.equal(true);
    const live = await replayed('frontend', '--state-dir', node.stateDir);
    expect(live.code).to.equal(0);
    expect(live.lives.map(({ outcome, same }) => [outcome, same > 24 * 4])).to.deep.equal([['same', true]]);
    const file = join(node.folder, 'some.tape');
    await run(process.execPath, [cli, 'tape', 'export', file, '--state-dir', node.stateDir]);
    for (const actor of ['router', 'frontend', 'registry', 'journal']) {
      const { code, lives } = await replayed(actor, '--file', file);
      expect([code, lives.map(({ outcome }) => outcome)], actor).to.deep.equal([0, ['same']]);
    }
  });

  it('runs a router again without prompts, and says of a frontend that they are not there', async () => {
    node = await startNode(['--prefill', '1', '--decode', '1', '--gateway', '1']);
    const answer = await ask(node.url, { prompt: 'A secret.', max_tokens: 12 });
    expect(answer.done).to.equal(true);
    const router = await replayed('router', '--state-dir', node.stateDir);
    expect([router.code, router.lives.map(nameOf), router.lives[0]?.outcome]).to.deep.equal([0, ['router'], 'same']);
    const frontend = await replayed('frontend', '--state-dir', node.stateDir);
    expect([frontend.code, frontend.lives[0]?.outcome]).to.deep.equal([1, 'impossible']);
    expect(frontend.lives[0]?.why).to.match(/prompts and tokens are not on this tape/);
  });
});
