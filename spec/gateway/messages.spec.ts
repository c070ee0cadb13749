import Anthropic from '@anthropic-ai/sdk';
import { expect } from 'chai';
import type { Prepared } from '../../actors/index.js';
import { openMockVocabulary } from '../../gpu/index.js';
import { answer, openRig, post, type Rig, type Script, send } from './scripted-frontend.js';

const weather = {
  name: 'get_weather',
  description: 'Weather of a city',
  input_schema: { type: 'object' as const, properties: { city: { type: 'string' } }, required: ['city'] },
};
const body = (more: Record<string, unknown> = {}) => ({
  model: 'mock',
  max_tokens: 20,
  messages: [{ role: 'user', content: 'hi' }],
  ...more,
});
const textOf = (prepared: Prepared) =>
  [...prepared.prompt]
    .map((token) => Buffer.from(openMockVocabulary('mock').piece(token)).toString('latin1') || '¦')
    .join('');
const calling = ['I look.', '<tool_call>\n{"name": "get_weather", "arguments": {"city":', ' "Paris"}}\n</tool_call>'];

describe('The Messages API of Anthropic', () => {
  let rig: Rig;
  let script: Script = answer(['Hel', 'lo']);
  let client: Anthropic;
  before(async () => {
    rig = await openRig({ script: (call) => script(call) });
    client = new Anthropic({ baseURL: rig.url, apiKey: 'none', maxRetries: 0 });
  });
  beforeEach(() => {
    script = answer(['Hel', 'lo']);
  });
  after(() => rig.close());

  it('answers Anthropic’s client in one piece', async () => {
    const message = await client.messages.create({
      ...body(),
      system: 'Be brief.',
      stop_sequences: ['x'],
      temperature: 0,
    } as never);
    expect(message).to.deep.include({
      type: 'message',
      role: 'assistant',
      model: 'mock',
      stop_reason: 'end_turn',
      stop_sequence: null,
    });
    expect(message.id).to.match(/^msg_/);
    expect(message.content).to.deep.equal([{ type: 'text', text: 'Hello' }]);
    const prepared = rig.calls.at(-1)?.prepared as Prepared;
    expect(textOf(prepared)).to.equal('¦system\nBe brief.¦\n¦user\nhi¦\n¦assistant\n');
    expect(prepared).to.deep.include({ maxTokens: 20, stop: ['x'] });
    const { input_tokens, cache_read_input_tokens, output_tokens } = message.usage;
    expect([input_tokens, cache_read_input_tokens, output_tokens]).to.deep.equal([prepared.prompt.length - 2, 2, 2]);
  });

  it('answers it in a stream, and its own accumulation is the same message', async () => {
    const seen: string[] = [];
    const stream = client.messages.stream(body() as never).on('streamEvent', ({ type }) => seen.push(type));
    const message = await stream.finalMessage();
    expect(message.content).to.deep.equal([{ type: 'text', text: 'Hello' }]);
    expect(message.stop_reason).to.equal('end_turn');
    expect(message.usage.output_tokens).to.equal(2);
    expect(seen).to.deep.equal([
      'message_start',
      'content_block_start',
      'content_block_delta',
      'content_block_delta',
      'content_block_stop',
      'message_delta',
      'message_stop',
    ]);
  });

  it('calls tools, streamed and whole alike', async () => {
    script = answer(calling);
    const asked = body({ tools: [weather], tool_choice: { type: 'auto' } });
    const whole = await client.messages.create(asked as never);
    const streamed = await client.messages.stream(asked as never).finalMessage();
    for (const message of [whole, streamed]) {
      expect(message.stop_reason).to.equal('tool_use');
      expect(message.content[0]).to.deep.equal({ type: 'text', text: 'I look.' });
      expect(message.content[1]).to.deep.include({ type: 'tool_use', name: 'get_weather', input: { city: 'Paris' } });
    }
  });

  it('takes back what tools said', async () => {
    const messages = [
      { role: 'user', content: 'hi' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'hm', signature: '' },
          { type: 'text', text: 'I look.' },
          { type: 'tool_use', id: 't1', name: 'get_weather', input: { city: 'Paris' } },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 't1', content: [{ type: 'text', text: 'sunny' }], is_error: true },
          { type: 'text', text: 'and?' },
        ],
      },
    ];
    await client.messages.create(body({ messages, tools: [weather] }) as never);
    const prompt = textOf(rig.calls.at(-1)?.prepared as Prepared);
    expect(prompt).to.include(
      '¦assistant\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>¦',
    );
    expect(prompt).to.include('¦user\n<tool_response>\nError: sunny\n</tool_response>¦\n¦user\nand?¦');
    expect(prompt).not.to.include('hm');
  });

  it('says which stop sequence ended the message, and that its length did', async () => {
    for (const [reason, stop, expected] of [
      ['stop', 'END', ['stop_sequence', 'END']],
      ['length', undefined, ['max_tokens', null]],
    ] as const) {
      script = ({ prepared, stream, ticket }) => {
        stream.begin(`r${ticket}`, prepared);
        stream.text(0, 'a', 1);
        stream.finish(0, reason, stop);
        stream.end({ promptTokens: 1, completionTokens: 1, cachedTokens: 0 });
      };
      const whole = await client.messages.create(body() as never);
      const streamed = await client.messages.stream(body() as never).finalMessage();
      for (const { stop_reason, stop_sequence } of [whole, streamed]) {
        expect([stop_reason, stop_sequence]).to.deep.equal(expected);
      }
    }
  });

  it('keeps reasoning in blocks of its own', async () => {
    script = answer(['why</th', 'ink>\n\nbecause']);
    const plain = openMockVocabulary('mock');
    rig.models.add({ ...plain, chatTemplate: plain.chatTemplate.replace("assistant\\n'", "assistant\\n<think>\\n'") });
    try {
      const whole = await client.messages.create(body() as never);
      const streamed = await client.messages.stream(body() as never).finalMessage();
      for (const { content } of [whole, streamed]) {
        expect(
          content.map((block) =>
            block.type === 'thinking' ? block.thinking : block.type === 'text' ? block.text : '',
          ),
        ).to.deep.equal(['why', 'because']);
      }
    } finally {
      rig.models.add(plain);
    }
  });

  it('counts the tokens of a prompt', async () => {
    const { input_tokens } = await client.messages.countTokens({
      ...body({ system: 'x' }),
      max_tokens: undefined,
    } as never);
    await client.messages.create(body({ system: 'x' }) as never);
    expect(input_tokens).to.equal(rig.calls.at(-1)?.prepared.prompt.length);
  });

  it('says errors as Anthropic does, before and in a stream', async () => {
    const refused = await client.messages.create(body({ model: 'nope' }) as never).catch((error: unknown) => error);
    expect(refused).to.be.instanceOf(Anthropic.NotFoundError);
    const { status, body: said, headers } = await send(rig, '/v1/messages', { body: '{' });
    expect(status).to.equal(400);
    expect(said).to.deep.include({ type: 'error', request_id: headers['x-request-id'] });
    expect(said.error.type).to.equal('invalid_request_error');
    script = ({ prepared, stream, ticket }) => {
      stream.begin(`r${ticket}`, prepared);
      stream.text(0, 'a', 1);
      stream.fail({ status: 503, type: 'server_error', code: 'x', param: null, message: 'gone' });
    };
    const broken = await client.messages
      .stream(body() as never)
      .finalMessage()
      .catch((error: unknown) => error);
    expect(String(broken)).to.include('overloaded_error');
  });

  for (const [what, more, text] of [
    ['no max_tokens', { max_tokens: undefined }, 'max_tokens'],
    ['an image', { messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }, 'messages[0].content[0]'],
    ['a system role', { messages: [{ role: 'system', content: 'x' }] }, 'messages[0].role'],
    ['a tool of Anthropic’s own', { tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, 'tools[0]'],
    [
      'a result from the assistant',
      { messages: [{ role: 'assistant', content: [{ type: 'tool_result', tool_use_id: 'a' }] }] },
      'messages[0].content[0]',
    ],
    ['a choice that is none', { tools: [weather], tool_choice: { type: 'perhaps' } }, 'tool_choice.type'],
    ['an empty stop sequence', { stop_sequences: [''] }, 'stop_sequences'],
    ['a temperature above the limit', { temperature: 3 }, 'temperature'],
  ] as const) {
    it(`refuses ${what} and names it`, async () => {
      const { status, body: said } = await post(rig, '/v1/messages', body(more));
      expect(status).to.equal(400);
      expect(said.error.message).to.include(text);
    });
  }
});
