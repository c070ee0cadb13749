import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { type ResolvedConfig, type RouteAnswer, readRouteTape } from '../../supervisors/index.js';
import { endNodes, startNode, type TestNode, until } from './node-kit.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const run = promisify(execFile);

describe('dynact route', function () {
  this.timeout(60_000);
  let node: TestNode;
  before(async () => {
    node = await startNode(['--prefill', '2', '--decode', '2', '--gateway', '2', '--speedup', '0']);
  });
  after(endNodes);

  const dynact = (...args: string[]) => run(process.execPath, [cli, 'route', ...args, '--state-dir', node.stateDir]);
  const content = 'A prompt of some hundred tokens, so that there are blocks. '.repeat(40);
  async function chat(): Promise<{ readonly id: string }> {
    const response = await fetch(`${node.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'mock', messages: [{ role: 'user', content }], max_tokens: 2 }),
    });
    return (await response.json()) as { id: string };
  }

  it('tells of a request, by the id its client has, who was compared and who was taken', async () => {
    const { id } = await chat();
    const { stdout } = await dynact('--explain', id);
    expect(stdout).to.match(/attempt 1 at 20\d\d-.*: prefill-\d-\w+, then decode-\d-\w+\n/);
    expect(stdout).to.contain('0 of ').and.contain('who decodes, by kv').and.contain('who computes the prompt, by kv');
    expect(stdout.match(/^ {4}→ {2}\S+/gm)).to.have.length(2);
  });

  it('says where a prompt would go, and that its prefix is expected there, without sending it', async () => {
    await chat();
    const expected = await until('gateways to hear of the cached blocks', async () => {
      const answers = JSON.parse((await dynact('--prompt', content, '--json')).stdout) as RouteAnswer[];
      expect(answers).to.have.length(2);
      const tokens = answers.map((answer) => ('records' in answer ? answer.records[0]?.expectedTokens : undefined));
      return tokens.every((count) => (count ?? 0) > 0) && tokens;
    });
    for (const tokens of expected)
      expect(tokens)
        .to.be.a('number')
        .that.satisfies((count: number) => count % 64 === 0);
    const served = (await node.status()).processes.filter(({ instance }) => instance.startsWith('decode'));
    expect(served.reduce((sum, { facts }) => sum + Number(facts.inFlight), 0)).to.equal(0);
  });

  it('tells of a request from the tape when the gateway that served it is gone', async () => {
    const { id } = await chat();
    const gateways = async () => (await node.status()).processes.filter(({ role }) => role === 'gateway');
    // What was decided last is written within a moment.
    await until('the decision to be on the tape', async () => {
      const taped = await readRouteTape(
        { nats: { url: '' }, node: { stateDir: node.stateDir } } as ResolvedConfig,
        id.slice(id.indexOf('-') + 1),
      );
      return taped.length > 0;
    });
    const before = await gateways();
    for (const { pid } of before) process.kill(pid as number, 'SIGKILL');
    await until('new gateways', async () => {
      const now = await gateways();
      return now.every(
        ({ state, incarnation }) => state === 'up' && before.every((old) => old.incarnation !== incarnation),
      );
    });
    const { stdout, stderr } = await dynact('--explain', id);
    expect(stderr).to.equal('');
    expect(stdout).to.match(
      /attempt 1 at 20\d\d-.*: prefill-\d-\w+, then decode-\d-\w+\n {2}gateway-\d-\w+, from the tape; /,
    );
    expect(stdout).to.match(/prompt tokens expected to be cached, \d+ were\n/);
    expect(stdout).to.contain('who decodes, by kv').and.contain('who computes the prompt, by kv');
    expect(stdout.match(/^ {4}→ {2}\S+/gm)).to.have.length(2);
    const [answer] = JSON.parse((await dynact('--explain', id, '--json')).stdout).filter(
      (each: RouteAnswer) => 'taped' in each,
    );
    expect(answer.taped).to.deep.equal({ unlike: 0 });
  });

  it('fails for a request that no gateway knows, and for a command that asks nothing or two things', async () => {
    const refused = (...args: string[]) =>
      dynact(...args).then(
        () => undefined,
        ({ code, stderr }: { code: number; stderr: string }) => ({ code, stderr }),
      );
    expect(await refused('--explain', 'nobody')).to.deep.include({ code: 1 });
    expect(await refused()).to.deep.include({ code: 2 });
    expect(await refused('--explain', 'x', '--prompt', 'y')).to.deep.include({ code: 2 });
  });
});
