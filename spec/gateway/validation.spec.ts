import { expect } from 'chai';
import fc from 'fast-check';
import { chatBody, openRig, post, type Reply, type Rig, send } from './scripted-frontend.js';

const refused = (reply: Reply, param: string | null, what: string) => {
  expect(reply.status, `${what}: ${reply.text}`).to.equal(400);
  expect(reply.body.error.type).to.equal('invalid_request_error');
  expect(reply.body.error.param, what).to.equal(param);
  expect(reply.body.error.message).to.be.a('string').and.have.length.above(10);
  expect(reply.headers['x-should-retry']).to.equal('false');
  expect(reply.text.length).to.be.below(600);
};

describe('Validation', () => {
  let rig: Rig;
  before(async () => {
    rig = await openRig();
  });
  after(() => rig.close());
  const chat = (more: Record<string, unknown>) => post(rig, '/v1/chat/completions', chatBody(more));
  const complete = (more: Record<string, unknown>) =>
    post(rig, '/v1/completions', { model: 'mock', prompt: 'x', ...more });

  const wrong: [string, unknown][] = [
    ['temperature', -1],
    ['temperature', 2.01],
    ['temperature', '1'],
    ['top_p', 0],
    ['top_p', 1.01],
    ['top_k', -2],
    ['top_k', 1.5],
    ['min_p', -0.1],
    ['frequency_penalty', 2.1],
    ['presence_penalty', -2.1],
    ['repetition_penalty', 0],
    ['n', 0],
    ['n', 129],
    ['max_tokens', 0],
    ['max_completion_tokens', 0],
    ['min_tokens', -1],
    ['stop', ''],
    ['stop', ['a', '']],
    ['stop', 5],
    ['stop', Array(33).fill('a')],
    ['logit_bias', { a: 1 }],
    ['logit_bias', { 5: 101 }],
    ['logit_bias', { 50000: 1 }],
    ['logit_bias', []],
    ['seed', 1.5],
    ['stream', 'yes'],
    ['stream_options', 1],
    ['stream_options', { include_usage: 1 }],
    ['top_logprobs', 21],
    ['top_logprobs', 2],
    ['logprobs', 3],
    ['messages', []],
    ['messages', 'hi'],
    ['messages', null],
    ['model', 5],
    ['model', ''],
    ['model', null],
    ['user', 7],
    ['metadata', []],
    ['tools', 5],
    ['tool_choice', 'required'],
    ['response_format', { type: 'json_object' }],
    ['response_format', 'text'],
    ['audio', { voice: 'a' }],
    ['modalities', ['audio']],
    ['functions', [{}]],
    ['echo', true],
    ['stop_token_ids', [1]],
    ['guided_json', {}],
  ];
  for (const [field, value] of wrong) {
    it(`refuses ${field} = ${JSON.stringify(value)?.slice(0, 60)} and names it`, async () => {
      refused(await chat({ [field]: value }), field, field);
    });
  }

  it('accepts the limits themselves, null everywhere, harmless forms of what is not served, and unknown fields', async () => {
    const fine = [
      { temperature: 0 },
      { temperature: 2 },
      { temperature: 1e-4 },
      { top_p: 1 },
      { top_k: -1 },
      { top_k: 0 },
      { min_p: 1 },
      { n: 128 },
      { max_tokens: 1 },
      { stop: Array(32).fill('a') },
      { stop: [] },
      { logit_bias: { 49999: -100 } },
      { seed: -5 },
      { stream_options: { include_usage: true, include_obfuscation: false } },
      { logprobs: true, top_logprobs: 20 },
      {
        tools: [],
        tool_choice: 'none',
        response_format: { type: 'text' },
        modalities: ['text'],
        parallel_tool_calls: true,
      },
      { user: 'u', metadata: { a: 'b' }, store: false, service_tier: 'auto', reasoning_effort: 'low', whatever: [1] },
      Object.fromEntries(wrong.filter(([name]) => !['messages', 'model'].includes(name)).map(([name]) => [name, null])),
      JSON.parse('{"__proto__":{"temperature":9},"constructor":1,"toString":2}'),
    ];
    for (const more of fine) expect((await chat(more)).status, JSON.stringify(more)).to.equal(200);
  });

  it('resolves every default, and prefers max_completion_tokens', async () => {
    await chat({
      max_tokens: 5,
      max_completion_tokens: 7,
      min_tokens: 2,
      ignore_eos: true,
      seed: -1,
      stop: 'a',
      logprobs: true,
    });
    const { prompt, ...prepared } = rig.calls.at(-1)?.prepared ?? { prompt: new Uint32Array() };
    expect(prompt.length).to.be.above(0);
    expect(prepared).to.deep.equal({
      model: 'mock',
      n: 1,
      maxTokens: 7,
      minTokens: 2,
      ignoreEos: true,
      logprobs: -1,
      stop: ['a'],
      cacheSalt: '',
      sampling: {
        temperature: 1,
        topK: 0,
        topP: 1,
        minP: 0,
        frequencyPenalty: 0,
        presencePenalty: 0,
        repetitionPenalty: 1,
        logitBias: [],
        seed: 2 ** 53 - 1,
      },
    });
    await chat({});
    const rest = rig.calls.at(-1)?.prepared;
    expect(rest?.maxTokens).to.equal(32_768 - (rest?.prompt.length ?? 0));
    expect(rest?.sampling.seed).to.equal(undefined);
  });

  it('refuses messages with the path of what is wrong', async () => {
    const user = { role: 'user', content: 'a' };
    const cases: [unknown[], string][] = [
      [[5], 'messages[0]'],
      [[user, { role: 'wizard', content: 'a' }], 'messages[1].role'],
      [[{ role: 'user' }], 'messages[0].content'],
      [[{ role: 'user', content: [] }], 'messages[0].content'],
      [[{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }], 'messages[0].content[0].type'],
      [[{ role: 'user', content: [{ type: 'text' }] }], 'messages[0].content[0].text'],
      [[{ role: 'tool', content: 'a' }], 'messages[0].tool_call_id'],
      [[user, { role: 'assistant', content: null, tool_calls: [{}] }], 'messages[1].tool_calls[0]'],
    ];
    for (const [messages, param] of cases) refused(await chat({ messages }), param, param);
  });

  it('reads text parts, developer messages, empty assistant turns and lone surrogates', async () => {
    const messages = [
      { role: 'developer', content: 'A' },
      {
        role: 'system',
        content: [
          { type: 'text', text: 'B' },
          { type: 'text', text: 'C' },
        ],
      },
      { role: 'user', content: 'x\ud800y' },
      { role: 'assistant', content: '' },
      { role: 'assistant', content: null },
      { role: 'user', content: '' },
    ];
    expect((await chat({ messages })).status).to.equal(200);
    const prompt = rig.calls.at(-1)?.prepared.prompt ?? new Uint32Array();
    const text = Buffer.from(
      [...prompt].map((token) => (token === 257 ? 0x7b : token === 258 ? 0x7d : token)),
    ).toString();
    expect(text).to.equal('{system\nA\n\nBC}\n{user\nx\ufffdy}\n{assistant\n}\n{assistant\n}\n{user\n}\n{assistant\n');
  });

  it('says 404 for an unknown model without repeating more than a few of its characters', async () => {
    for (const stream of [true, false]) {
      const reply = await chat({ model: 'x'.repeat(200), stream });
      expect(reply.status).to.equal(404);
      expect(reply.body.error).to.include({ code: 'model_not_found', param: 'model' });
      expect(reply.text.length).to.be.below(250);
    }
    refused(await chat({ model: 'y'.repeat(1_000_000) }), 'model', 'a megabyte of name');
  });

  it('takes a context filled to its last token and refuses one more, before a stream starts', async () => {
    const byte = (count: number) => Array(count).fill(65);
    for (const stream of [false, true]) {
      expect((await complete({ prompt: byte(32_767), max_tokens: 1, stream })).status).to.equal(200);
      for (const more of [
        { prompt: byte(32_767), max_tokens: 2 },
        { prompt: byte(32_768) },
        { prompt: 'a'.repeat(4_000_000) },
      ]) {
        const reply = await complete({ ...more, stream });
        expect(reply.status).to.equal(400);
        expect(reply.body.error.code).to.equal('context_length_exceeded');
      }
    }
    const reply = await chat({ messages: [{ role: 'user', content: 'a'.repeat(40_000) }], stream: true });
    expect(reply.body.error).to.include({ code: 'context_length_exceeded', param: 'messages' });
  });

  it('joins several prompts into one answer with indexed choices and summed usage', async () => {
    const { usage: one } = (await complete({ prompt: 'ab' })).body;
    for (const prompt of [
      ['ab', 'ab'],
      [
        [65, 66],
        [65, 66],
      ],
    ]) {
      const { body } = await complete({ prompt, n: 2 });
      expect(body.choices.map((choice: { index: number; text: string }) => [choice.index, choice.text])).to.deep.equal(
        [0, 1, 2, 3].map((index) => [index, 'Hello']),
      );
      expect(body.usage.prompt_tokens).to.equal(2 * one.prompt_tokens);
      expect(body.usage.completion_tokens).to.equal(4 * one.completion_tokens);
    }
    for (const prompt of ['ab', ['ab'], [65, 66], [[65, 66]]]) {
      expect((await complete({ prompt })).body.choices).to.have.length(1);
      expect([...(rig.calls.at(-1)?.prepared.prompt ?? [])]).to.deep.equal([
        97 + (prompt === 'ab' || prompt[0] === 'ab' ? 0 : -32),
        98 + (prompt === 'ab' || prompt[0] === 'ab' ? 0 : -32),
      ]);
    }
  });

  it('refuses a bad batch as a whole', async () => {
    const bad: [unknown, string][] = [
      [['a', ''], 'prompt'],
      [['a', 5], 'prompt'],
      [[], 'prompt'],
      [[[]], 'prompt'],
      [[[1], ['a']], 'prompt'],
      [[50_000], 'prompt'],
      [[-1], 'prompt'],
      [Array(129).fill('a'), 'prompt'],
      [{}, 'prompt'],
      ['', 'prompt'],
      [undefined, 'prompt'],
    ];
    for (const [prompt, param] of bad) refused(await complete({ prompt }), param, JSON.stringify(prompt)?.slice(0, 40));
    refused(await complete({ prompt: Array(65).fill('a'), n: 2 }), 'prompt', 'prompts times n');
    refused(await complete({ logprobs: 6 }), 'logprobs', 'logprobs');
    refused(await complete({ best_of: 3 }), 'best_of', 'best_of');
    refused(await complete({ suffix: 'x' }), 'suffix', 'suffix');
    refused(await complete({ min_tokens: 3, max_tokens: 2 }), 'min_tokens', 'min_tokens');
  });

  it('never answers a body with a 5xx, whatever it is, and stays alive', async function () {
    this.timeout(60_000);
    const keys = [
      'model',
      'messages',
      'prompt',
      'stream',
      'n',
      'stop',
      'logit_bias',
      'seed',
      'max_tokens',
      'stream_options',
      'tools',
      'response_format',
      'temperature',
      'logprobs',
      'top_logprobs',
      'role',
      'content',
      '__proto__',
    ];
    const { value } = fc.letrec((tie) => ({
      value: fc.oneof(
        { maxDepth: 4 },
        fc.constantFrom<unknown>('mock', 'user', 'system', 'text', true, false, null, 0, 1, 1e308),
        fc.double(),
        fc.string({ unit: 'binary', maxLength: 20 }),
        fc.array(tie('value'), { maxLength: 4 }),
        fc.dictionary(fc.constantFrom(...keys), tie('value'), { maxKeys: 6 }),
      ),
    }));
    const mutated = fc.dictionary(fc.constantFrom(...keys), value, { maxKeys: 3 });
    const body = fc.oneof(
      value,
      mutated.map((more) => ({ ...chatBody({ prompt: 'a' }), ...more })),
    );
    const path = fc.constantFrom('/v1/chat/completions', '/v1/completions');
    await fc.assert(
      fc.asyncProperty(path, body, async (url, json) => {
        const reply = await send(rig, url, { body: JSON.stringify(json) ?? '' });
        expect(reply.status).to.be.below(500);
        if (reply.status >= 400) expect(reply.body.error.message).to.be.a('string');
      }),
      { numRuns: 400 },
    );
    expect(rig.log.filter((line) => 'defect' in line)).to.deep.equal([]);
    expect((await chat({})).status).to.equal(200);
  });
});
