import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import { openMockVocabulary } from '../../gpu/index.js';
import { type Answer, ask } from './client.js';
import { endNodes, startNode, survivors, type TestNode, until, untilIdle } from './node-kit.js';

const question = (index: number) => ({ prompt: `question ${index}`, max_tokens: 12, ignore_eos: true, seed: index });
const few = { DYNACT_ENGINE_PREFILL_SLOTS: '2', DYNACT_MOCK_STEP_MS: '2' };
const long = { prompt: 'a long answer', max_tokens: 100, ignore_eos: true, stream: true, seed: 3 };

/** Streams whose answers have all begun; `ended` resolves with what became of them. */
async function streaming(node: TestNode, count: number): Promise<{ ended: Promise<Answer[]> }> {
  const begun = new Set<number>();
  const answers = Array.from({ length: count }, (_, index) =>
    ask(node.url, long, { onText: (text) => text !== '' && begun.add(index) }),
  );
  await until('first token of every stream', () => begun.size === count);
  return { ended: Promise.all(answers) };
}

/** CPU that a process has used, in ms. */
async function cpuMs(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

describe('A node under load', function () {
  this.timeout(180_000);
  afterEach(endNodes);

  it('completes 300 requests at once on eight slots, with the right answers, and holds nothing afterwards', async () => {
    const node = await startNode(['--slots', '8'], { env: few });
    const alone = await ask(node.url, question(77));
    expect(alone.status).to.equal(200);
    const rss = async () => (await node.status()).processes.reduce((sum, { rssBytes }) => sum + rssBytes, 0);
    const wave = async () => {
      const answers = await Promise.all(
        Array.from({ length: 300 }, (_, index) => ask(node.url, { ...question(index), stream: index % 2 === 0 })),
      );
      expect(answers.filter(({ done, finish }) => !done || finish !== 'length')).to.deep.equal([]);
      expect(answers[77]?.text).to.equal(alone.text);
      await untilIdle(node);
    };
    await wave();
    const warm = await rss();
    await wave();
    await wave();
    expect((await rss()) - warm).to.be.lessThan(150 * 1024 * 1024);
    await until('all of them being counted', async () => (await node.processOf('gateway-0')).facts.served === 901);
    expect((await node.status()).processes.filter(({ restarts }) => restarts > 0)).to.deep.equal([]);
  });

  it('tells 529 with retry-after to whoever finds the queue full, and serves all others', async () => {
    const env = { ...few, DYNACT_ROUTING_QUEUE_LENGTH: '4', DYNACT_MOCK_STEP_MS: '20' };
    const node = await startNode(['--slots', '2'], { env });
    const answers = await Promise.all(Array.from({ length: 30 }, (_, index) => ask(node.url, question(index))));
    const served = answers.filter(({ status }) => status === 200);
    const turnedAway = answers.filter(({ status }) => status === 529);
    expect(served.length + turnedAway.length).to.equal(30);
    // How many more than slots and queue hold depends on how soon the first are done.
    expect(served.length).to.be.at.least(6);
    expect(turnedAway.length).to.be.at.least(1);
    for (const { error, retryAfter } of turnedAway) {
      expect(error).to.equal('queue_full');
      expect(Number(retryAfter)).to.be.greaterThan(0);
    }
    await untilIdle(node);
    expect((await ask(node.url, question(1))).status).to.equal(200);
  });

  it('goes on serving when its mail has filled the broker many times over', async () => {
    const env = { DYNACT_NATS_SIZE_FACTOR: '0.001' };
    const node = await startNode(['--speedup', '0'], { env });
    for (let index = 0; index < 40; index++) {
      const answer = await ask(node.url, { prompt: `${index}${' tok600'.repeat(4000)}`, max_tokens: 3 });
      expect([index, answer.status]).to.deep.equal([index, 200]);
    }
    await untilIdle(node);
  });

  it('finishes running answers on SIGTERM, takes no new ones, and leaves no process behind', async () => {
    const node = await startNode([], { env: { DYNACT_MOCK_STEP_MS: '20' } });
    const { ended } = await streaming(node, 16);
    const exit = node.stop();
    await until('refusal of new requests', async () => {
      const { status } = await ask(node.url, question(1));
      return status !== 200;
    });
    for (const { done, finish, error } of await ended)
      expect([done, finish, error]).to.deep.equal([true, 'length', null]);
    expect(await exit).to.equal(0);
    expect(survivors(node)).to.deep.equal([]);
  });

  it('stops at once on a second SIGTERM', async () => {
    const node = await startNode(['--drain-ms', '60000'], { env: { DYNACT_MOCK_STEP_MS: '1000' } });
    const { ended } = await streaming(node, 4);
    const exit = node.stop();
    await until('draining', async () => (await node.status()).processes[0]?.state === 'draining');
    const asked = performance.now();
    await node.stop();
    await exit;
    // Half of what the drain would be given.
    expect(performance.now() - asked).to.be.lessThan(30_000);
    for (const { done } of await ended) expect(done).to.equal(false);
    await until('the end of every process', () => survivors(node).length === 0);
  });

  it('ends altogether when the node is killed under load, and its folder serves again', async () => {
    const node = await startNode(['--drain-ms', '1000'], { env: { DYNACT_MOCK_STEP_MS: '1000' } });
    const { ended } = await streaming(node, 16);
    await node.stop('SIGKILL');
    for (const { done } of await ended) expect(done).to.equal(false);
    const again = await startNode([], { folder: node.folder });
    expect(survivors(node)).to.deep.equal([]);
    expect((await ask(again.url, question(1))).status).to.equal(200);
  });

  it('uses less than 2 % of a core per process, on average, when nobody asks anything', async () => {
    const node = await startNode();
    await ask(node.url, question(1));
    await untilIdle(node);
    const { processes } = await node.status();
    const usage = () => Promise.all(processes.map(({ pid }) => cpuMs(pid as number)));
    // Some seconds after work V8 tidies each heap once, and they beat fast for a while: the cheapest of a few looks is what idling costs.
    const least = processes.map(() => Number.POSITIVE_INFINITY);
    for (let look = 0; look < 4; look++) {
      const before = await usage();
      const start = performance.now();
      await sleep(3_000);
      const elapsed = performance.now() - start;
      for (const [index, used] of (await usage()).entries())
        least[index] = Math.min(least[index] as number, (100 * (used - (before[index] as number))) / elapsed);
    }
    const percent = processes.map(({ instance }, index) => ({ instance, percent: least[index] as number }));
    const sum = percent.reduce((total, one) => total + one.percent, 0);
    expect(sum / percent.length, JSON.stringify(percent)).to.be.lessThan(2);
    expect(percent.filter((one) => one.percent >= 3)).to.deep.equal([]);
  });

  for (const [level, kept] of [
    ['metadata', false],
    ['full', true],
  ] as const) {
    it(`${kept ? 'keeps' : 'never puts'} prompts and answers on disk with \`tape: ${level}\``, async () => {
      const node = await startNode(['--tape', level]);
      const prompt = ' tok41001 tok41002 tok41003 tok41004';
      expect((await ask(node.url, { prompt, max_tokens: 4 })).status).to.equal(200);
      await untilIdle(node);
      await node.stop();
      const tokens = openMockVocabulary().tokenize(prompt, { special: false, addBos: false });
      const needle = Buffer.from(tokens.buffer, tokens.byteOffset, tokens.byteLength);
      const found: string[] = [];
      for (const entry of await readdir(node.stateDir, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile()) continue;
        const bytes = await readFile(join(entry.parentPath, entry.name));
        if (bytes.includes(needle) || bytes.includes('tok41001')) found.push(entry.name);
      }
      expect(found.length > 0).to.equal(kept);
      expect(node.log()).not.to.contain('tok41001');
    });
  }
});
