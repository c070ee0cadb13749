import { expect } from 'chai';
import OpenAI from 'openai';
import { resolveToolchain } from '../../supervisors/toolchain.js';
import { endNodes, startNode, type TestNode, untilIdle } from './node-kit.js';

const model = 'smollm2-135m-instruct';
const messages: OpenAI.ChatCompletionMessageParam[] = [
  { role: 'system', content: 'You are a helpful assistant who answers in one short sentence.' },
  { role: 'user', content: 'What is the capital of France?' },
];

type Params = Omit<OpenAI.ChatCompletionCreateParamsNonStreaming, 'model' | 'messages' | 'stream'> & {
  readonly ignore_eos?: boolean;
};

async function whole(client: OpenAI, params: Params) {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 24, ...params });
  return {
    texts: answer.choices.map(({ message }) => message.content),
    finishes: answer.choices.map(({ finish_reason }) => finish_reason as string),
    usage: answer.usage,
  };
}

/** `chunks` is called with the number of chunks so far, at each one. */
async function streamed(
  client: OpenAI,
  params: Params,
  chunks: (count: number) => void = () => {},
): Promise<Awaited<ReturnType<typeof whole>>> {
  let count = 0;
  const stream = await client.chat.completions.create({
    model,
    messages,
    max_tokens: 24,
    ...params,
    stream: true,
    stream_options: { include_usage: true },
  });
  const texts: string[] = [];
  const finishes: string[] = [];
  let usage: OpenAI.CompletionUsage | undefined;
  for await (const chunk of stream) {
    chunks(++count);
    for (const { index, delta, finish_reason } of chunk.choices) {
      texts[index] = (texts[index] ?? '') + (delta.content ?? '');
      if (finish_reason) finishes[index] = finish_reason;
    }
    usage = chunk.usage ?? usage;
  }
  return { texts, finishes, usage };
}

describe('The default model, served by prefill and decode processes', function () {
  this.timeout(180_000);
  let node: TestNode;
  let client: OpenAI;
  const connect = (url: string) => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });

  before(async function () {
    try {
      resolveToolchain();
    } catch (error) {
      console.log(`      skipped: ${(error as Error).message}`);
      return this.skip();
    }
    node = await startNode(['--engine', 'llama']);
    client = connect(node.url);
  });
  after(endNodes);

  const served = async (instance: string) => {
    await untilIdle(node);
    const { facts } = await node.processOf(instance);
    return { served: Number(facts.served), steps: Number(facts.steps) };
  };

  it('gives the right answer, the same one streamed, in one piece, and without a prefill worker', async () => {
    const before = { prefill: await served('prefill-0'), decode: await served('decode-0') };
    const answer = await whole(client, { temperature: 0 });
    expect(answer.texts[0]).to.contain('Paris');
    expect(answer.finishes).to.deep.equal(['stop']);
    expect(answer.usage?.total_tokens).to.equal(
      (answer.usage?.prompt_tokens ?? 0) + (answer.usage?.completion_tokens ?? 0),
    );
    // The prompt was computed there, the tokens came from here.
    const after = { prefill: await served('prefill-0'), decode: await served('decode-0') };
    expect(after.prefill.served).to.equal(before.prefill.served + 1);
    expect(after.prefill.steps).to.be.greaterThan(before.prefill.steps);
    expect(after.decode.served).to.equal(before.decode.served + 1);
    const tokens = answer.usage?.completion_tokens ?? 0;
    expect(after.decode.steps - before.decode.steps).to.be.within(tokens - 1, tokens + 3);

    expect((await streamed(client, { temperature: 0 })).texts).to.deep.equal(answer.texts);
    const alone = await startNode(['--engine', 'llama', '--prefill', '0']);
    expect((await whole(connect(alone.url), { temperature: 0 })).texts).to.deep.equal(answer.texts);
    await alone.stop();
  });

  it('repeats what a seed drew, streamed and among others, and draws something else with another seed', async () => {
    const seeded = { temperature: 1.2, seed: 11, n: 2 };
    const first = await whole(client, seeded);
    expect(new Set(first.texts).size).to.equal(2);
    const crowd = await Promise.all([
      streamed(client, seeded),
      whole(client, { ...seeded, seed: 12 }),
      whole(client, seeded),
      streamed(client, { ...seeded, seed: 13 }),
    ]);
    for (const index of [0, 2]) {
      expect(crowd[index]?.texts).to.deep.equal(first.texts);
      expect(crowd[index]?.finishes).to.deep.equal(first.finishes);
      expect(crowd[index]?.usage?.completion_tokens).to.equal(first.usage?.completion_tokens);
    }
    expect(crowd[1]?.texts).not.to.deep.equal(first.texts);
  });

  it('stops before a stop string, and at max_tokens', async () => {
    const stopped = await whole(client, { temperature: 0, stop: ['Paris'] });
    expect(stopped.texts[0]).not.to.contain('Paris');
    expect(stopped.texts[0]?.length).to.be.greaterThan(5);
    expect(stopped.finishes).to.deep.equal(['stop']);
    expect((await streamed(client, { temperature: 0, stop: ['Paris'] })).texts).to.deep.equal(stopped.texts);
    const short = await whole(client, { temperature: 0, max_tokens: 2 });
    expect(short.finishes).to.deep.equal(['length']);
    expect(short.usage?.completion_tokens).to.equal(2);
  });

  it('loses no token of an answer when either worker is killed in its middle', async () => {
    // Beyond OpenAI's fields: without it this answer is too short to be interrupted.
    const story = { temperature: 0.8, seed: 5, max_tokens: 100, ignore_eos: true };
    const undisturbed = await whole(client, story);
    expect(undisturbed.usage?.completion_tokens).to.equal(100);
    for (const instance of ['decode-0', 'prefill-0']) {
      const { pid, restarts } = await node.processOf(instance);
      const disturbed = await streamed(client, story, (count) => {
        if (count === 20) process.kill(pid as number, 'SIGKILL');
      });
      expect(disturbed.texts, instance).to.deep.equal(undisturbed.texts);
      await node.pid(instance);
      await untilIdle(node);
      expect((await node.processOf(instance)).restarts).to.equal(restarts + 1);
    }
  });
});
