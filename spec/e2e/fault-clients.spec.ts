import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import { seededRandom } from '../../actors/index.js';
import { type Answer, ask } from './client.js';
import { endNodes, metricsOf, startNode, type TestNode, until, untilIdle } from './node-kit.js';

const slots = 8;
const workers = 2;
const env = { DYNACT_ENGINE_PREFILL_SLOTS: '4', DYNACT_MOCK_STEP_MS: '3' };
const flags = ['--prefill', String(workers), '--decode', String(workers), '--slots', String(slots)];

/** As many answers as all slots together hold, each on its way before any of them ends. */
async function fullHouse(node: TestNode): Promise<readonly Answer[]> {
  const begun = new Set<number>();
  let together = false;
  const answers = await Promise.all(
    Array.from({ length: slots * workers }, (_, index) =>
      ask(
        node.url,
        { prompt: `seat ${index}`, max_tokens: 150, ignore_eos: true, seed: index, stream: true },
        {
          onText: (text) => {
            if (text === '') return;
            begun.add(index);
            together ||= begun.size === slots * workers;
          },
        },
      ),
    ),
  );
  expect(answers.filter(({ done, finish }) => !done || finish !== 'length')).to.deep.equal([]);
  expect(together, 'all slots at once').to.equal(true);
  return answers;
}

/** Every request that was accepted has ended, and was counted once, under one outcome. */
async function expectBalance(node: TestNode): Promise<void> {
  await until('balanced metrics', async () => {
    const metrics = await metricsOf(node);
    const accepted = metrics.sum('dynact_frontend_requests_accepted_total');
    const ended = metrics.sum('dynact_http_requests_total');
    return metrics.sum('dynact_frontend_requests_in_flight') === 0 && accepted > 0 && ended >= accepted;
  });
  const metrics = await metricsOf(node);
  expect(metrics.sum('dynact_requests_in_flight')).to.equal(0);
  expect(metrics.sum('dynact_frontend_token_conflicts_total')).to.equal(0);
}

describe('Clients that go, ask for nonsense or come in crowds', function () {
  this.timeout(120_000);
  let node: TestNode;
  let house: readonly Answer[];

  before(async () => {
    node = await startNode(flags, { env });
    house = await fullHouse(node);
  });
  after(endNodes);
  afterEach(async () => {
    await untilIdle(node);
    // Nobody was blamed for what clients did.
    const { processes } = await node.status();
    expect(processes.filter(({ restarts }) => restarts > 0)).to.deep.equal([]);
    expect(await fullHouse(node)).to.deep.equal(house);
  });

  it('cost nothing for long: after 400 that hung up at random moments every slot and block is free', async () => {
    const random = seededRandom(20);
    let next = 0;
    const ends: string[] = [];
    const client = async () => {
      while (next < 400) {
        const index = next++;
        const gone = new AbortController();
        const body = {
          prompt: ` tok${1000 + index}`.repeat(1 + Math.floor(random() * 400)),
          max_tokens: 100,
          ignore_eos: true,
          seed: index,
          stream: random() < 0.5,
          n: random() < 0.2 ? 2 : 1,
        };
        const answer = ask(node.url, body, { signal: gone.signal });
        await sleep(random() * 150);
        gone.abort();
        const { done } = await answer;
        ends.push(done ? 'done' : 'gone');
      }
    };
    await Promise.all(Array.from({ length: 40 }, client));
    expect(ends.length).to.equal(400);
    expect(ends.filter((end) => end === 'gone').length).to.be.greaterThan(200);
    await untilIdle(node);
    await expectBalance(node);
  });

  it('are told what is wrong with 20 bad prompts, and no worker is blamed', async () => {
    const before = await metricsOf(node);
    const bad: readonly object[] = [
      ...[-1, 0, 1.5, 'ten', 1e9].map((max_tokens) => ({ prompt: 'x', max_tokens })),
      ...[-1, 3, 'hot', null, [1]].map((temperature) => ({ prompt: 'x', temperature: temperature ?? 'null' })),
      ...[0, 1000, 'two'].map((n) => ({ prompt: 'x', n })),
      ...[' tok600'.repeat(40_000), 17, {}, [], [[]], ''].map((prompt) => ({ prompt })),
      { prompt: 'x', stop: Array.from({ length: 40 }, (_, index) => `stop ${index}`) },
    ];
    expect(bad.length).to.equal(20);
    const answers = await Promise.all(bad.map((body) => ask(node.url, body)));
    expect(answers.map(({ status }) => status)).to.deep.equal(bad.map(() => 400));
    const after = await metricsOf(node);
    for (const name of ['dynact_frontend_requests_accepted_total', 'dynact_frontend_migrations_total']) {
      expect(after.sum(name), name).to.equal(before.sum(name));
    }
  });

  it('are served or told 529 when three times as many come as fit, and no worker is blamed', async () => {
    const crowded = await startNode(flags, { env: { ...env, DYNACT_ROUTING_QUEUE_LENGTH: '16' } });
    const crowd = Array.from({ length: 120 }, (_, index) =>
      ask(crowded.url, { prompt: `crowd ${index}`, max_tokens: 60, ignore_eos: true, stream: index % 2 === 0 }),
    );
    const answers = await Promise.all(crowd);
    const served = answers.filter(({ status, finish, done }) => status === 200 && finish === 'length' && done);
    const turnedAway = answers.filter(({ status, error }) => status === 529 && error === 'queue_full');
    expect(served.length + turnedAway.length).to.equal(120);
    expect(served.length).to.be.at.least(slots * workers);
    expect(turnedAway.length).to.be.at.least(1);
    await untilIdle(crowded);
    await expectBalance(crowded);
    expect((await metricsOf(crowded)).sum('dynact_frontend_migrations_total')).to.equal(0);
    await fullHouse(crowded);
  });
});
