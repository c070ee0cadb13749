import { expect } from 'chai';
import OpenAI, { APIError, APIUserAbortError, NotFoundError } from 'openai';
import { answer, openRig, type Rig } from './scripted-frontend.js';

describe('The openai client', () => {
  let rig: Rig;
  afterEach(() => rig.close());
  const client = (maxRetries = 0) => new OpenAI({ baseURL: `${rig.url}/v1`, apiKey: 'none', maxRetries });
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'hi' }];

  it('gets the same text, finish and usage streamed and in one piece', async () => {
    rig = await openRig({ script: answer(['Grüße', ', ', '世', '界 ', '🚀']) });
    const whole = await client().chat.completions.create({ model: 'mock', messages, n: 2 });
    const stream = await client().chat.completions.create({
      model: 'mock',
      messages,
      n: 2,
      stream: true,
      stream_options: { include_usage: true },
    });
    const texts = ['', ''];
    const finishes: (string | null)[] = [];
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) {
      for (const choice of chunk.choices) {
        texts[choice.index] += choice.delta.content ?? '';
        if (choice.finish_reason !== null) finishes[choice.index] = choice.finish_reason;
      }
      usage = chunk.usage ?? usage;
    }
    expect(texts).to.deep.equal(whole.choices.map(({ message }) => message.content));
    expect(texts[0]).to.equal('Grüße, 世界 🚀');
    expect(finishes).to.deep.equal(whole.choices.map(({ finish_reason }) => finish_reason));
    expect(usage).to.deep.equal(whole.usage);
    expect(whole._request_id).to.match(/^req_/);
  });

  it('streams legacy completions', async () => {
    rig = await openRig({ script: answer(['a', 'b']) });
    const stream = await client().completions.create({
      model: 'mock',
      prompt: ['x', 'y'],
      stream: true,
      logprobs: null,
    });
    const texts = ['', ''];
    for await (const chunk of stream) for (const { index, text } of chunk.choices) texts[index] += text;
    expect(texts).to.deep.equal(['ab', 'ab']);
  });

  it('lists and retrieves models', async () => {
    rig = await openRig();
    const list = await client().models.list();
    expect(list.data.map(({ id }) => id)).to.deep.equal(['mock']);
    expect((await client().models.retrieve('mock')).id).to.equal('mock');
  });

  it('raises typed errors with message, code and param, and does not repeat what is its own fault', async () => {
    rig = await openRig();
    const missing = await client(2)
      .chat.completions.create({ model: 'nobody', messages })
      .catch((error) => error);
    expect(missing).to.be.instanceOf(NotFoundError);
    expect(missing).to.include({ status: 404, code: 'model_not_found', param: 'model' });
    expect(rig.log.filter(({ outcome }) => outcome === 'refused')).to.have.length(1);
  });

  it('repeats a 503 after the time it is told', async () => {
    let refusals = 1;
    rig = await openRig({ accept: (request) => request.type !== 'Submit' || refusals-- <= 0 });
    const whole = await client(1).chat.completions.create({ model: 'mock', messages });
    expect(whole.choices[0]?.message.content).to.equal('Hello');
    expect(refusals).to.equal(-1);
  });

  it('raises an error in the middle of a stream that breaks', async () => {
    rig = await openRig({
      script({ prepared, stream }) {
        stream.begin('r', prepared);
        stream.text(0, 'a', 1);
        stream.fail({
          status: 500,
          type: 'server_error',
          code: 'worker_lost',
          param: null,
          message: 'the worker died',
        });
      },
    });
    const stream = await client().chat.completions.create({ model: 'mock', messages, stream: true });
    const texts: string[] = [];
    const error = await (async () => {
      for await (const chunk of stream) texts.push(chunk.choices[0]?.delta.content ?? '');
    })().then(
      () => undefined,
      (reason) => reason,
    );
    expect(error).to.be.instanceOf(APIError);
    expect(error.message).to.include('the worker died');
    expect(texts.join('')).to.equal('a');
  });

  it('cancels on the server when the caller breaks out of a stream or aborts', async () => {
    rig = await openRig({
      script({ prepared, stream }) {
        if (!prepared.ignoreEos) stream.begin('r', prepared);
        stream.text(0, 'a', 1);
      },
    });
    const stream = await client().chat.completions.create({ model: 'mock', messages, stream: true });
    for await (const _ of stream) break;
    await rig.until(() => rig.gone.length === 1, 'ClientGone after break');
    const controller = new AbortController();
    const pending = client()
      .chat.completions.create({ model: 'mock', messages }, { signal: controller.signal })
      .catch((error) => error);
    await rig.until(() => rig.calls.length === 2, 'the second request');
    controller.abort();
    expect(await pending).to.be.instanceOf(APIUserAbortError);
    await rig.until(() => rig.gone.length === 2, 'ClientGone after abort');
  });
});
