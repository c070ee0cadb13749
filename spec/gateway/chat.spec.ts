import { expect } from 'chai';
import { answer, chatBody, events, openRig, post, type Rig, send } from './scripted-frontend.js';

describe('Chat completions', () => {
  let rig: Rig;
  afterEach(() => rig.close());

  it('answers in one piece with OpenAI’s shape, usage and headers', async () => {
    rig = await openRig({ script: answer(['Hel', 'lo “wörld”\n']) });
    const reply = await post(rig, '/v1/chat/completions', chatBody({ n: 2 }), { 'x-request-id': 'mine-1' });
    expect(reply.status).to.equal(200);
    expect(reply.headers['x-request-id']).to.equal('mine-1');
    expect(reply.headers['openai-processing-ms']).to.match(/^\d+$/);
    expect(reply.body).to.include({ id: 'chatcmpl-r1', object: 'chat.completion', model: 'mock' });
    expect(reply.body.choices).to.deep.equal(
      [0, 1].map((index) => ({
        index,
        message: { role: 'assistant', content: 'Hello “wörld”\n', refusal: null },
        logprobs: null,
        finish_reason: 'stop',
      })),
    );
    const promptTokens = rig.calls[0]?.prepared.prompt.length ?? 0;
    expect(reply.body.usage).to.deep.equal({
      prompt_tokens: promptTokens,
      completion_tokens: 4,
      total_tokens: promptTokens + 4,
      prompt_tokens_details: { cached_tokens: 2 },
    });
  });

  it('streams the same text: the role once per choice, a finish each, usage last when asked, then [DONE]', async () => {
    rig = await openRig({ script: answer(['Hel', '', 'lo']) });
    const body = chatBody({ n: 2, stream: true, stream_options: { include_usage: true } });
    const reply = await post(rig, '/v1/chat/completions', body);
    expect(reply.status).to.equal(200);
    expect(reply.headers['content-type']).to.equal('text/event-stream; charset=utf-8');
    const list = events(reply.text);
    expect(list.pop()).to.equal('[DONE]');
    const usage = list.pop();
    expect(usage.choices).to.deep.equal([]);
    expect(usage.usage.completion_tokens).to.equal(6);
    for (const event of list) {
      expect(event).to.include({ id: 'chatcmpl-r1', object: 'chat.completion.chunk', model: 'mock', usage: null });
      expect(event.choices).to.have.length(1);
    }
    for (const choice of [0, 1]) {
      const own = list.map((event) => event.choices[0]).filter(({ index }) => index === choice);
      expect(own.filter(({ delta }) => 'role' in delta)).to.have.length(1);
      expect(own[0].delta).to.deep.equal({ role: 'assistant', content: '', refusal: null });
      // The empty text in between makes no event.
      expect(own.slice(1, -1).map(({ delta }) => delta.content)).to.deep.equal(['Hel', 'lo']);
      expect(own.at(-1)).to.deep.equal({ index: choice, delta: {}, logprobs: null, finish_reason: 'stop' });
    }
  });

  it('leaves usage out of every chunk when it was not asked for', async () => {
    rig = await openRig();
    const reply = await post(rig, '/v1/chat/completions', chatBody({ stream: true }));
    const list = events(reply.text);
    expect(list.at(-1)).to.equal('[DONE]');
    for (const event of list.slice(0, -1)) expect(event).not.to.have.property('usage');
  });

  it('escapes every text so that each event is one line of valid JSON', async () => {
    const texts = ['"', '\\', '\n\n', 'data: x', '\u2028', '\u0000', '💥', '\ud800'];
    rig = await openRig({ script: answer(texts) });
    const reply = await post(rig, '/v1/chat/completions', chatBody({ stream: true }));
    const contents = events(reply.text)
      .slice(1, -2)
      .map((event) => event.choices[0].delta.content);
    expect(contents).to.deep.equal(texts);
  });

  it('keeps log probabilities of held-back bytes for the event that shows them', async () => {
    rig = await openRig({
      script({ prepared, stream }) {
        stream.begin('r', prepared);
        // 260 and 261 are the halves of é in the mock vocabulary.
        stream.text(0, '', 1, [
          {
            token: 260,
            logprob: -0.5,
            top: [
              [260, -0.5],
              [520, -2],
            ],
          },
        ]);
        stream.text(0, 'é', 1, [{ token: 261, logprob: -0.25, top: [[261, -0.25]] }]);
        stream.finish(0, 'length');
        stream.end({ promptTokens: 1, completionTokens: 2, cachedTokens: 0 });
      },
    });
    const body = chatBody({ stream: true, logprobs: true, top_logprobs: 2 });
    const list = events((await post(rig, '/v1/chat/completions', body)).text);
    expect(rig.calls[0]?.prepared.logprobs).to.equal(2);
    const { content } = list[1].choices[0].logprobs;
    expect(list[1].choices[0].delta.content).to.equal('é');
    expect(content.map((item: { bytes: number[] }) => item.bytes)).to.deep.equal([[0xc3], [0xa9]]);
    expect(content[0].top_logprobs[1]).to.deep.equal({
      token: ' tok520',
      logprob: -2,
      bytes: [...Buffer.from(' tok520')],
    });
    expect(list[2].choices[0].finish_reason).to.equal('length');
  });

  it('answers a refusal before begin with its real status, in both modes', async () => {
    rig = await openRig({
      script: ({ stream }) =>
        stream.fail({
          status: 529,
          type: 'server_error',
          code: 'overloaded',
          param: null,
          message: 'full',
          retryAfterMs: 250,
        }),
    });
    for (const stream of [false, true]) {
      const reply = await post(rig, '/v1/chat/completions', chatBody({ stream }));
      expect(reply.status).to.equal(529);
      expect(reply.body).to.deep.equal({
        error: { message: 'full', type: 'server_error', param: null, code: 'overloaded' },
      });
      expect(reply.headers).to.include({ 'retry-after': '1', 'retry-after-ms': '250' });
    }
  });

  it('ends a broken stream with an error event and without [DONE], and says nothing afterwards', async () => {
    rig = await openRig({
      script({ prepared, stream }) {
        stream.begin('r', prepared);
        stream.text(0, 'a', 1);
        stream.fail({ status: 500, type: 'server_error', code: 'worker_lost', param: null, message: 'gone' });
        stream.text(0, 'b', 1);
        stream.end({ promptTokens: 1, completionTokens: 2, cachedTokens: 0 });
        stream.fail({ status: 500, type: 'server_error', code: 'again', param: null, message: 'again' });
      },
    });
    const reply = await post(rig, '/v1/chat/completions', chatBody({ stream: true }));
    expect(reply.status).to.equal(200);
    const list = events(reply.text);
    expect(list.at(-1)).to.deep.equal({
      error: { message: 'gone', type: 'server_error', param: null, code: 'worker_lost' },
    });
    expect(list).to.have.length(3);
    const whole = await post(rig, '/v1/chat/completions', chatBody());
    expect(whole.status).to.equal(500);
    expect(whole.body.error.code).to.equal('worker_lost');
    expect(rig.gone).to.deep.equal([]);
  });

  it('says 503 with retry-after when the frontend takes no more', async () => {
    rig = await openRig({ accept: (request) => request.type !== 'Submit' });
    const reply = await post(rig, '/v1/chat/completions', chatBody({ stream: true }));
    expect(reply.status).to.equal(503);
    expect(reply.headers).to.have.property('retry-after');
    expect(reply.body.error.code).to.equal('overloaded');
  });

  it('replaces a request id that is no label, and passes a valid traceparent on', async () => {
    rig = await openRig();
    const trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    const first = await post(rig, '/v1/chat/completions', chatBody(), {
      'x-request-id': 'a b<script>',
      traceparent: trace,
    });
    expect(first.headers['x-request-id']).to.match(/^req_[0-9a-f]{32}$/);
    expect(rig.calls[0]).to.include({ label: first.headers['x-request-id'], trace });
    await post(rig, '/v1/chat/completions', chatBody(), { traceparent: '00-zz' });
    expect(rig.calls[1]?.trace).to.equal(undefined);
  });

  it('lists models, finds ids with slashes raw or encoded, and follows changes', async () => {
    rig = await openRig();
    const { openMockVocabulary } = await import('../../gpu/index.js');
    rig.models.add(openMockVocabulary('org/tiny-1'), { contextTokens: 512, created: 7 });
    const expected = {
      id: 'org/tiny-1',
      object: 'model',
      created: 7,
      owned_by: 'dynact',
      max_model_len: 512,
      context_length: 512,
    };
    for (const path of ['/v1/models/org/tiny-1', '/v1/models/org%2Ftiny-1']) {
      expect((await send(rig, path)).body, path).to.deep.equal(expected);
    }
    const ids = async () => (await send(rig, '/v1/models/')).body.data.map((model: { id: string }) => model.id);
    expect(await ids()).to.deep.equal(['mock', 'org/tiny-1']);
    rig.models.remove('org/tiny-1');
    expect(await ids()).to.deep.equal(['mock']);
    const missing = await send(rig, '/v1/models/org/tiny-1');
    expect(missing.status).to.equal(404);
    expect(missing.body.error.code).to.equal('model_not_found');
  });
});
