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
import { errorBody } from './errors.js';
import type { Exchange } from './exchange.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { ModelRegistry } from './models.js';
import type { HubStream, StreamHub } from './stream-hub.js';
import { Chunks, logprobsJson } from './wire.js';

export interface StreamContext {
  readonly hub: StreamHub;
  readonly models: ModelRegistry;
  readonly metrics: GatewayMetrics;
  /** Most bytes a client may leave unread. */
  readonly unsentBytes: number;
}

interface ChoiceState {
  /** Characters sent, for completions' `text_offset`. */
  sent: number;
  lastAt: number;
  /** Log probabilities of tokens whose text is still held back. */
  held: TokenLogprob[];
}

export class SseStream implements ClientStream, HubStream {
  readonly #exchange: Exchange;
  readonly #context: StreamContext;
  readonly #includeUsage: boolean;
  #prepared: Prepared | undefined;
  #chunks: Chunks | undefined;
  #choices: ChoiceState[] = [];
  #latency: ReturnType<GatewayMetrics['latency']> | undefined;
  #firstDone = false;
  /** Events not yet given to the socket. */
  #out = '';
  /** `#out` is all ASCII: its characters are its bytes, and writing it costs half. */
  #ascii = true;
  /** The parts around the text are. */
  #framesAreAscii = true;
  #awake = false;
  /** Headers and first events are out; `raw` holds nothing back. */
  #flushed = false;
  #finishing = false;
  #quietTicks = 0;

  constructor(exchange: Exchange, context: StreamContext, includeUsage: boolean) {
    this.#exchange = exchange;
    this.#context = context;
    this.#includeUsage = includeUsage;
    exchange.onEnd(() => context.hub.remove(this));
  }

  begin(id: string, prepared: Prepared): void {
    if (this.#exchange.ended || this.#chunks !== undefined) return;
    const { raw, api, startedAt } = this.#exchange;
    this.#exchange.begun(id, prepared);
    this.#prepared = prepared;
    this.#latency = this.#context.metrics.latency(api, prepared.model);
    const chunks = new Chunks(api, id, Math.floor(Date.now() / 1000), prepared, this.#includeUsage);
    this.#chunks = chunks;
    this.#framesAreAscii = isAscii(prepared.model);
    this.#choices = Array.from({ length: prepared.n }, () => ({ sent: 0, lastAt: 0, held: [] }));
    raw.writeHead(200, {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
      'openai-processing-ms': String(Math.round(performance.now() - startedAt)),
    });
    this.#context.hub.add(this);
    const roles = this.#choices.map((_, choice) => chunks.role(choice)).join('');
    // Headers leave at once, with the first events where there are any.
    if (roles === '') raw.flushHeaders();
    else this.#write(roles);
  }

  text(choice: number, text: string, _tokens: number, logprobs?: readonly TokenLogprob[]): void {
    const state = this.#choices[choice];
    if (state === undefined || this.#chunks === undefined || this.#exchange.ended || this.#finishing) return;
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
    if (state.held.length === 0) this.#write(this.#chunks.text(choice, text), isAscii(text));
    else this.#write(this.#withLogprobs(choice, state, text), false);
    state.sent += text.length;
  }

  finish(choice: number, reason: FinishReason): void {
    const state = this.#choices[choice];
    if (state === undefined || this.#chunks === undefined || this.#exchange.ended || this.#finishing) return;
    const rest = state.held.length > 0 ? this.#withLogprobs(choice, state, '') : '';
    this.#write(rest + this.#chunks.finish(choice, reason), rest === '');
  }

  end(usage: Usage, answer?: DryRunAnswer): void {
    if (this.#chunks === undefined || this.#exchange.ended || this.#finishing) return;
    if (answer !== undefined) this.#write(this.#chunks.dryRun(answer));
    this.#write(`${this.#includeUsage ? this.#chunks.usage(usage) : ''}data: [DONE]\n\n`);
    this.#finishing = true;
    this.#exchange.complete(usage);
  }

  fail(error: RequestError): void {
    if (this.#exchange.ended || this.#finishing) return;
    if (this.#chunks === undefined) {
      this.#exchange.refuse(error);
      return;
    }
    // No [DONE]: a client must not take what it has for the whole answer.
    this.#write(`data: ${errorBody(error)}\n\n`, false);
    this.#finishing = true;
    this.#exchange.settle('failed', error.code ?? error.type);
  }

  flush(): void {
    this.#awake = false;
    const { raw } = this.#exchange;
    const out = this.#out;
    const ascii = this.#ascii && this.#framesAreAscii;
    this.#out = '';
    this.#ascii = true;
    if (raw.destroyed || raw.writableEnded) return;
    if (this.#finishing) {
      raw.end(out);
      return;
    }
    if (out === '') return;
    const { socket } = raw;
    if (this.#flushed && raw.chunkedEncoding && socket !== null) {
      // One string to the socket in the chunk framing that `raw` has announced: a third cheaper than `raw.write`, which hands
      // four pieces over.
      const bytes = ascii ? out.length : Buffer.byteLength(out);
      socket.write(`${bytes.toString(16)}\r\n${out}\r\n`, ascii ? 'latin1' : 'utf8');
    } else {
      this.#flushed = true;
      raw.write(out);
    }
    if (raw.writableLength > this.#context.unsentBytes) {
      this.#context.metrics.slowReader();
      this.#exchange.cut('slow_reader');
    }
  }

  tick(): void {
    if (++this.#quietTicks < 2) return;
    this.#write(': keep-alive\n\n');
  }

  /** `ascii`: what varies in these events is. False is always right. */
  #write(events: string, ascii = true): void {
    this.#quietTicks = 0;
    this.#out += events;
    if (!ascii) this.#ascii = false;
    if (this.#awake) return;
    this.#awake = true;
    this.#context.hub.wake(this);
  }

  #withLogprobs(choice: number, state: ChoiceState, text: string): string {
    const { api } = this.#exchange;
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

// biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant.
const asciiOnly = /^[\x00-\x7f]*$/;
const isAscii = (text: string): boolean => asciiOnly.test(text);
