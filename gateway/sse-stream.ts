/** A streamed answer: Server-Sent Events in OpenAI's shape. */
import type {
  ClientStream,
  DryRunAnswer,
  FinishReason,
  Prepared,
  RequestError,
  TokenLogprob,
  Usage,
} from '../actors/index.js';
import type { Delta } from './answer/delta.js';
import { type AnswerParser, answerParser } from './answer/parser.js';
import { errorBody } from './errors.js';
import type { Exchange } from './exchange.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { ModelRegistry } from './models.js';
import { isAscii, type SseContext, SseWriter } from './sse-writer.js';
import { Chunks, logprobsJson } from './wire.js';

export interface StreamContext extends SseContext {
  readonly models: ModelRegistry;
}

interface ChoiceState {
  /** Characters sent, for completions' `text_offset`. */
  sent: number;
  lastAt: number;
  /** Log probabilities of tokens whose text is still held back. */
  held: TokenLogprob[];
  /** Undefined: all of the text is the answer. */
  readonly parser: AnswerParser | undefined;
}

export class SseStream implements ClientStream {
  readonly #exchange: Exchange;
  readonly #context: StreamContext;
  readonly #includeUsage: boolean;
  #prepared: Prepared | undefined;
  #chunks: Chunks | undefined;
  #choices: ChoiceState[] = [];
  #latency: ReturnType<GatewayMetrics['latency']> | undefined;
  #firstDone = false;
  readonly #writer: SseWriter;
  /** The parts around the text are. */
  #framesAreAscii = true;

  constructor(exchange: Exchange, context: StreamContext, includeUsage: boolean) {
    this.#exchange = exchange;
    this.#context = context;
    this.#includeUsage = includeUsage;
    this.#writer = new SseWriter(exchange, context);
  }

  begin(id: string, prepared: Prepared): void {
    if (this.#exchange.ended || this.#chunks !== undefined) return;
    const { api, name } = this.#exchange.surface;
    this.#exchange.begun(id, prepared);
    this.#prepared = prepared;
    this.#latency = this.#context.metrics.latency(name, prepared.model);
    const chunks = new Chunks(api, id, Math.floor(Date.now() / 1000), prepared, this.#includeUsage);
    this.#chunks = chunks;
    this.#framesAreAscii = isAscii(prepared.model);
    this.#choices = Array.from({ length: prepared.n }, () => ({
      sent: 0,
      lastAt: 0,
      held: [],
      parser: prepared.answer && answerParser(prepared.answer),
    }));
    this.#writer.open(this.#choices.map((_, choice) => chunks.role(choice)).join(''), this.#framesAreAscii);
  }

  text(choice: number, text: string, _tokens: number, logprobs?: readonly TokenLogprob[]): void {
    const state = this.#choices[choice];
    if (state === undefined || this.#chunks === undefined || this.#writer.closed) return;
    const now = this.#context.hub.now();
    if (state.lastAt === 0) {
      if (!this.#firstDone) {
        this.#firstDone = true;
        this.#exchange.firstText(now);
        this.#latency?.first.observe((now - this.#exchange.startedAt) / 1000);
      }
    } else this.#latency?.between.observe((now - state.lastAt) / 1000);
    state.lastAt = now;
    if (logprobs !== undefined && logprobs.length > 0) state.held.push(...logprobs);
    // Bytes that are not yet a character make no event; their log probabilities wait for it.
    if (text === '') return;
    if (state.parser !== undefined) {
      for (const delta of state.parser.push(text)) this.#delta(choice, state, delta);
    } else if (state.held.length === 0) this.#write(this.#chunks.text(choice, text), isAscii(text));
    else this.#write(this.#withLogprobs(choice, state, text), false);
    state.sent += text.length;
  }

  finish(choice: number, reason: FinishReason): void {
    const state = this.#choices[choice];
    if (state === undefined || this.#chunks === undefined || this.#writer.closed) return;
    for (const delta of state.parser?.end() ?? []) this.#delta(choice, state, delta);
    const rest = state.held.length > 0 ? this.#withLogprobs(choice, state, '') : '';
    const called = reason === 'stop' && (state.parser?.calls ?? 0) > 0;
    this.#write(rest + this.#chunks.finish(choice, called ? 'tool_calls' : reason), rest === '');
  }

  end(usage: Usage, answer?: DryRunAnswer): void {
    if (this.#chunks === undefined || this.#writer.closed) return;
    if (answer !== undefined) this.#write(this.#chunks.dryRun(answer));
    this.#writer.close(`${this.#includeUsage ? this.#chunks.usage(usage) : ''}data: [DONE]\n\n`, this.#framesAreAscii);
    this.#exchange.complete(usage);
  }

  fail(error: RequestError): void {
    if (this.#writer.closed) return;
    if (this.#chunks === undefined) {
      this.#exchange.refuse(error);
      return;
    }
    // No [DONE]: a client must not take what it has for the whole answer.
    this.#writer.close(`data: ${errorBody(error)}\n\n`, false);
    this.#exchange.settle('failed', error.code ?? error.type);
  }

  /** `ascii`: what varies in these events is. */
  #write(events: string, ascii = true): void {
    this.#writer.write(events, ascii && this.#framesAreAscii);
  }

  #delta(choice: number, state: ChoiceState, delta: Delta): void {
    const chunks = this.#chunks as Chunks;
    if (delta.kind === 'content' && state.held.length > 0)
      this.#write(this.#withLogprobs(choice, state, delta.text), false);
    else this.#write(chunks.delta(choice, delta), false);
  }

  #withLogprobs(choice: number, state: ChoiceState, text: string): string {
    const { api } = this.#exchange.surface;
    const prepared = this.#prepared as Prepared;
    const pieces = this.#context.models.lookup(prepared.model)?.pieces;
    const held = state.held;
    state.held = [];
    const chunks = this.#chunks as Chunks;
    if (pieces === undefined) return chunks.text(choice, text);
    const logprobs = logprobsJson(api, pieces, held, prepared.logprobs > 0, state.sent);
    return chunks.textWithLogprobs(choice, text, logprobs);
  }
}
