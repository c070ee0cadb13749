import { expect } from 'chai';
import { type Answer, ask } from './client.js';
import { endNodes, startNode, type TestNode, until, untilIdle } from './node-kit.js';

const streams = 16;
/** Every other answer comes in one piece. */
const isStream = (index: number) => index % 2 === 0;
const body = (index: number) => ({
  prompt: `question ${index} with a few words more`,
  max_tokens: 60,
  ignore_eos: true,
  seed: 100 + index,
  stream: isStream(index),
});

/** All at once; `busy` is called when every stream has begun and none has ended: the other answers are as far. */
async function all(url: string, busy: () => void = () => {}): Promise<Answer[]> {
  const begun = new Set<number>();
  const running = Array.from({ length: streams }, (_, index) =>
    ask(url, body(index), {
      onText: (text) => {
        if (text === '' || begun.has(index) || !isStream(index)) return;
        begun.add(index);
        if (begun.size === streams / 2) busy();
      },
    }),
  );
  return Promise.all(running);
}

describe('A node whose processes are killed', function () {
  this.timeout(180_000);
  let node: TestNode;
  let undisturbed: readonly Answer[];

  before(async () => {
    // 20 ms a step: 60 tokens take 1.2 s, and a kill comes in their middle.
    node = await startNode([], { env: { DYNACT_MOCK_STEP_MS: '20' } });
    undisturbed = await all(node.url);
    for (const { status, finish, done } of undisturbed)
      expect([status, finish, done]).to.deep.equal([200, 'length', true]);
    expect(new Set(undisturbed.map(({ text }) => text)).size).to.equal(streams);
  });
  after(endNodes);

  async function restarted(instance: string, lives: number): Promise<void> {
    const { lastReason } = await until(`restart of ${instance}`, async () => {
      const now = await node.processOf(instance);
      return now.state === 'up' && now.restarts === lives && now;
    });
    expect(lastReason).to.contain('SIGKILL');
  }

  for (const instance of ['decode-0', 'prefill-0']) {
    it(`restarts ${instance} killed while idle, and answers as before`, async () => {
      const { restarts } = await node.processOf(instance);
      await node.kill(instance);
      await restarted(instance, restarts + 1);
      expect(await all(node.url)).to.deep.equal(undisturbed);
      await untilIdle(node);
    });

    it(`loses no token of ${streams} answers when ${instance} is killed in their middle`, async () => {
      const { restarts, pid } = await node.processOf(instance);
      let killed = 0;
      const answers = await all(node.url, () => {
        killed = performance.now();
        process.kill(pid as number, 'SIGKILL');
      });
      expect(killed).to.be.greaterThan(0);
      expect(answers).to.deep.equal(undisturbed);
      await restarted(instance, restarts + 1);
      await untilIdle(node);
    });
  }

  it('loses no request that is on its way to a prefill worker that dies', async () => {
    const { restarts, pid } = await node.processOf('prefill-0');
    const answers = all(node.url);
    process.kill(pid as number, 'SIGKILL');
    expect(await answers).to.deep.equal(undisturbed);
    await restarted('prefill-0', restarts + 1);
    await untilIdle(node);
  });

  it('keeps every answer when the broker is killed in its middle, and serves new ones', async () => {
    const { restarts, pid } = await node.processOf('nats');
    const answers = await all(node.url, () => process.kill(pid as number, 'SIGKILL'));
    expect(answers).to.deep.equal(undisturbed);
    await restarted('nats', restarts + 1);
    expect(await all(node.url)).to.deep.equal(undisturbed);
    await untilIdle(node);
  });

  it('breaks the streams of a gateway that is killed, frees what they held, and serves on the same port', async () => {
    const { restarts, pid } = await node.processOf('gateway-0');
    const answers = await all(node.url, () => process.kill(pid as number, 'SIGKILL'));
    for (const { error, done } of answers) expect([error, done]).to.deep.equal(['cut', false]);
    await restarted('gateway-0', restarts + 1);
    await untilIdle(node);
    expect(await all(node.url)).to.deep.equal(undisturbed);
    await untilIdle(node);
  });
});
