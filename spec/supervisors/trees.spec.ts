import { expect } from 'chai';
import { startTrees, type Trees } from './tree-kit.js';

const ask = (trees: Trees, body: object) =>
  fetch(`${trees.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'mock',
      messages: [{ role: 'user', content: 'Once upon a time' }],
      seed: 7,
      ...body,
    }),
  });

interface Answer {
  choices: { message: { content: string }; finish_reason: string }[];
  usage: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
  };
}

describe('gateway, prefill and decode trees on a real broker', function () {
  this.timeout(30_000);
  let trees: Trees;
  before(async () => {
    trees = await startTrees({ prefill: 1, decode: 1 });
  });
  after(() => trees.stop());

  it('answer a chat request, streamed and whole, with the same text', async () => {
    const whole = (await (await ask(trees, { max_tokens: 40 })).json()) as Answer;
    expect(whole.usage.completion_tokens).to.equal(40);
    expect(whole.choices[0]?.finish_reason).to.equal('length');
    const streamed = await (await ask(trees, { max_tokens: 40, stream: true })).text();
    const events = streamed.split('\n\n').filter((event) => event.startsWith('data: {'));
    const text = events.map((event) => JSON.parse(event.slice(6)).choices[0]?.delta.content ?? '').join('');
    expect(text).to.equal(whole.choices[0]?.message.content);
    expect(streamed.endsWith('data: [DONE]\n\n')).to.equal(true);
  });

  it('answer many at a time, each with its own text', async () => {
    const answers = await Promise.all(
      Array.from({ length: 40 }, async (_, i) => {
        const messages = [{ role: 'user', content: `Story ${i % 20}` }];
        return (await (await ask(trees, { messages, max_tokens: 30 })).json()) as Answer;
      }),
    );
    const texts = answers.map(({ choices }) => choices[0]?.message.content);
    expect(new Set(texts).size).to.equal(20);
    for (let i = 0; i < 20; i++) expect(texts[i]).to.equal(texts[i + 20]);
  });

  it('tell the gateway what they have cached, and a prompt that comes again is served from there', async () => {
    const metric = async (name: string) =>
      Number(
        new RegExp(`^dynact_router_${name} (\\d+)$`, 'm').exec(await (await fetch(`${trees.url}/metrics`)).text())?.[1],
      );
    const messages = [{ role: 'user', content: 'All that is gold does not glitter. '.repeat(60) }];
    const again = async () => ((await (await ask(trees, { messages, max_tokens: 3 })).json()) as Answer).usage;
    const before = await metric('kv_index_nodes');
    const first = await again();
    const deadline = Date.now() + 5_000;
    while ((await metric('kv_index_nodes')) <= before && Date.now() < deadline)
      await new Promise((r) => setTimeout(r, 50));
    expect((await again()).prompt_tokens_details.cached_tokens).to.be.within(64, first.prompt_tokens);
    expect(await metric('kv_index_nodes')).to.equal(before + Math.floor(first.prompt_tokens / 64));
    expect(await metric('kv_quarantined')).to.equal(0);
  });

  it('leave nothing behind when idle', async () => {
    await ask(trees, { max_tokens: 5 });
    const held = () => [...trees.workers.values()].map((tree) => tree.facts().inFlight);
    const deadline = Date.now() + 5_000;
    while (held().some((count) => count !== 0) && Date.now() < deadline) await new Promise((r) => setTimeout(r, 50));
    expect(held()).to.deep.equal([0, 0]);
  });
});
