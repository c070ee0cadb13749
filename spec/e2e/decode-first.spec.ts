/** Decode-first as its user runs it: prompts go by a queue on the broker, whoever dies meanwhile. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { ask } from './client.js';
import { endNodes, startNode, type TestNode, until, untilIdle } from './node-kit.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const run = promisify(execFile);

describe('A node whose decode workers leave prompts to a queue', function () {
  this.timeout(120_000);
  let node: TestNode;
  const words = 'some words to make a prompt that is long enough for the queue '.repeat(6);
  const body = (index: number) => ({ prompt: `${index} ${words}`, max_tokens: 8, ignore_eos: true, seed: index });
  const texts: string[] = [];

  before(async () => {
    node = await startNode(
      ['--flow', 'decode-first', '--prefill', '2', '--decode', '2', '--slots', '2', '--routing', 'least-loaded'],
      {
        env: {
          DYNACT_MOCK_STEP_MS: '10',
          DYNACT_DISAGG_MAX_LOCAL_PREFILL_LENGTH: '100',
          DYNACT_DISAGG_MAX_PREFILL_QUEUE_SIZE: '100',
        },
      },
    );
  });
  after(endNodes);

  const fact = async (role: 'prefill' | 'decode', name: string) =>
    (await node.status()).processes
      .filter(({ instance }) => instance.startsWith(role))
      .reduce((sum, { facts }) => sum + Number(facts[name] ?? 0), 0);
  const flood = (count: number) => Promise.all(Array.from({ length: count }, (_, index) => ask(node.url, body(index))));

  it('serves ten times what its workers hold at a time, and holds nothing afterwards', async () => {
    const answers = await flood(40);
    for (const { status, finish } of answers) expect([status, finish]).to.deep.equal([200, 'length']);
    texts.push(...answers.map(({ text }) => text));
    expect(new Set(texts).size).to.equal(40);
    await untilIdle(node);
    // On a busy machine an answer of the queue may come too late, and a decode worker does without.
    expect(await fact('decode', 'offered')).to.be.within(20, 40);
    expect(await fact('prefill', 'served')).to.be.at.least(20);
  });

  for (const [what, strike] of Object.entries({
    'a prefill worker is killed': (on: TestNode) => on.kill('prefill-0'),
    'a decode worker is killed': (on: TestNode) => on.kill('decode-1'),
    'the broker is killed, and its jobs with it': (on: TestNode) => on.kill('nats'),
  })) {
    it(`gives the same answers when ${what}`, async () => {
      const running = Array.from({ length: 16 }, (_, index) => ask(node.url, body(index)));
      await Promise.race(running);
      await strike(node);
      for (const [index, { text, error }] of (await Promise.all(running)).entries()) {
        expect(error, `answer ${index}`).to.equal(null);
        expect(text).to.equal(texts[index]);
      }
      await untilIdle(node);
    });
  }

  it('keeps prompts with its decode workers as soon as the limit is raised, while it runs', async () => {
    const set = (...args: string[]) => run(process.execPath, [cli, 'config', ...args, '--state-dir', node.stateDir]);
    await set('set', 'disagg.maxLocalPrefillLength', '100000');
    await until('a prompt that stays', async () => {
      const before = await fact('prefill', 'served');
      await ask(node.url, body(1));
      await untilIdle(node);
      return (await fact('prefill', 'served')) === before;
    });
    await set('unset', 'disagg.maxLocalPrefillLength');
  });
});
