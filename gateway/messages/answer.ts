/** Answers of Anthropic's Messages API: a message in one piece, or the events that build it up block by block. */
import type { ClientStream, FinishReason, Prepared, RequestError, Usage } from '../../actors/index.js';
import type { Delta } from '../answer/delta.js';
import { type AnswerParser, answerParser } from '../answer/parser.js';
import { readAnswer } from '../answer/whole.js';
import { gatewayError } from '../errors.js';
import type { Exchange } from '../exchange.js';
import { FirstText } from '../first-text.js';
import { isAscii, type SseContext, SseWriter } from '../sse-writer.js';
import { anthropicError } from '../surface.js';
import { writeWhole } from '../whole-response.js';

const json = JSON.stringify;
const event = (type: string, rest: object) => `event: ${type}\ndata: ${json({ type, ...rest })}\n\n`;

/** Anthropic counts what a cache had apart from what was computed. */
const usageOf = ({ promptTokens, completionTokens, cachedTokens }: Usage) => ({
  input_tokens: promptTokens - cachedTokens,
  cache_creation_input_tokens: 0,
  cache_read_input_tokens: cachedTokens,
  output_tokens: completionTokens,
});

const head = (id: string, model: string) => ({ id: `msg_${id}`, type: 'message', role: 'assistant', model });

function stopOf(reason: FinishReason, stop: string | undefined, called: boolean) {
  const why =
    stop !== undefined ? 'stop_sequence' : reason === 'length' ? 'max_tokens' : called ? 'tool_use' : 'end_turn';
  return { stop_reason: why, stop_sequence: stop ?? null };
}

const toolId = (id: string, call: number) => `toolu_${id}_${call}`;

export class WholeMessage implements ClientStream {
  #id = '';
  #prepared: Prepared | undefined;
  #text = '';
  #finish: FinishReason = 'stop';
  #stop: string | undefined;
  readonly #first: FirstText;

  constructor(
    private readonly exchange: Exchange,
    context: SseContext,
  ) {
    this.#first = new FirstText(exchange, context);
  }

  begin(id: string, prepared: Prepared): void {
    if (this.exchange.ended || this.#prepared !== undefined) return;
    this.exchange.begun(id, prepared);
    this.#id = id;
    this.#prepared = prepared;
    this.#first.begin(prepared.model);
  }

  text(_choice: number, text: string): void {
    if (this.exchange.ended) return;
    this.#first.seen();
    this.#text += text;
  }

  finish(_choice: number, reason: FinishReason, stop?: string): void {
    this.#finish = reason;
    this.#stop = stop;
  }

  end(usage: Usage): void {
    if (this.exchange.ended) return;
    const prepared = this.#prepared;
    if (prepared === undefined) {
      this.fail(gatewayError('GWY_INTERNAL'));
      return;
    }
    const { text, reasoning = '', calls } = readAnswer(this.#text, this.#finish, prepared.answer);
    const content = [
      ...(reasoning === '' ? [] : [{ type: 'thinking', thinking: reasoning, signature: '' }]),
      ...(text === '' && calls.length > 0 ? [] : [{ type: 'text', text }]),
      ...calls.map((call, at) => ({
        type: 'tool_use',
        id: toolId(this.#id, at),
        name: call.name,
        input: objectIn(call.arguments),
      })),
    ];
    const stop = stopOf(this.#finish, this.#stop, calls.length > 0);
    writeWhole(this.exchange, json({ ...head(this.#id, prepared.model), content, ...stop, usage: usageOf(usage) }));
    this.exchange.complete(usage);
  }

  fail(error: RequestError): void {
    this.exchange.refuse(error);
  }
}

/** Arguments that were cut short are no JSON: what is there of them has no meaning. */
function objectIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

type Block = 'text' | 'thinking' | 'tool_use';

export class MessageStream implements ClientStream {
  readonly #writer: SseWriter;
  readonly #first: FirstText;
  #id = '';
  #prepared: Prepared | undefined;
  #parser: AnswerParser | undefined;
  /** The block that is being written; the first has index 0. */
  #open: Block | undefined;
  #index = -1;
  #stop: ReturnType<typeof stopOf> = { stop_reason: 'end_turn', stop_sequence: null };

  constructor(
    private readonly exchange: Exchange,
    context: SseContext,
  ) {
    this.#writer = new SseWriter(exchange, context, event('ping', {}));
    this.#first = new FirstText(exchange, context);
  }

  begin(id: string, prepared: Prepared): void {
    if (this.exchange.ended || this.#prepared !== undefined) return;
    this.exchange.begun(id, prepared);
    this.#id = id;
    this.#prepared = prepared;
    this.#parser = prepared.answer && answerParser(prepared.answer);
    this.#first.begin(prepared.model);
    // What a cache had of the prompt is known with the answer: the last event corrects this.
    const usage = usageOf({ promptTokens: prepared.prompt.length, completionTokens: 0, cachedTokens: 0 });
    const message = { ...head(id, prepared.model), content: [], stop_reason: null, stop_sequence: null, usage };
    this.#writer.open(event('message_start', { message }), isAscii(prepared.model));
  }

  text(_choice: number, text: string): void {
    if (this.#prepared === undefined || this.#writer.closed) return;
    this.#first.seen();
    if (text === '') return;
    if (this.#parser === undefined) this.#say({ kind: 'content', text });
    else for (const delta of this.#parser.push(text)) this.#say(delta);
  }

  finish(_choice: number, reason: FinishReason, stop?: string): void {
    if (this.#prepared === undefined || this.#writer.closed) return;
    for (const delta of this.#parser?.end() ?? []) this.#say(delta);
    const called = (this.#parser?.calls ?? 0) > 0;
    // A message has content, be it empty.
    if (this.#index < 0) this.#start('text', { type: 'text', text: '' });
    this.#close();
    this.#stop = stopOf(reason, stop, called);
  }

  end(usage: Usage): void {
    if (this.#prepared === undefined || this.#writer.closed) return;
    const last = event('message_delta', { delta: this.#stop, usage: usageOf(usage) });
    this.#writer.close(last + event('message_stop', {}), isAscii(last));
    this.exchange.complete(usage);
  }

  fail(error: RequestError): void {
    if (this.#writer.closed) return;
    if (this.#prepared === undefined) {
      this.exchange.refuse(error);
      return;
    }
    this.#writer.close(`event: error\ndata: ${anthropicError(error, this.exchange.label)}\n\n`, false);
    this.exchange.settle('failed', error.code ?? error.type);
  }

  #say(delta: Delta): void {
    switch (delta.kind) {
      case 'content':
        if (this.#open !== 'text') this.#start('text', { type: 'text', text: '' });
        this.#delta({ type: 'text_delta', text: delta.text });
        break;
      case 'reasoning':
        if (this.#open !== 'thinking') this.#start('thinking', { type: 'thinking', thinking: '', signature: '' });
        this.#delta({ type: 'thinking_delta', thinking: delta.text });
        break;
      case 'call': {
        const id = toolId(this.#id, delta.call);
        this.#start('tool_use', { type: 'tool_use', id, name: delta.name, input: {} });
        break;
      }
      case 'arguments':
        this.#delta({ type: 'input_json_delta', partial_json: delta.text });
    }
  }

  #start(kind: Block, block: object): void {
    this.#close();
    this.#open = kind;
    this.#index++;
    this.#writer.write(event('content_block_start', { index: this.#index, content_block: block }));
  }

  #delta(delta: object): void {
    this.#writer.write(event('content_block_delta', { index: this.#index, delta }), false);
  }

  #close(): void {
    if (this.#open === undefined) return;
    this.#open = undefined;
    this.#writer.write(event('content_block_stop', { index: this.#index }));
  }
}
