/** An answer in one piece: gathers what a stream would send, and is as long as `max_tokens` allows. */
import type {
  ClientStream,
  DryRunAnswer,
  FinishReason,
  Prepared,
  RequestError,
  TokenLogprob,
  Usage,
} from '../actors/index.js';
import { readAnswer } from './answer/whole.js';
import { gatewayError } from './errors.js';
import type { Exchange } from './exchange.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { StreamContext } from './sse-stream.js';
import { writeWhole } from './whole-response.js';
import { logprobsJson, wholeResponse } from './wire.js';

interface ChoiceState {
  text: string;
  lastAt: number;
  finish: FinishReason | null;
  readonly logprobs: TokenLogprob[];
}

export class Collector implements ClientStream {
  readonly #exchange: Exchange;
  readonly #context: StreamContext;
  #id = '';
  #prepared: Prepared | undefined;
  #choices: ChoiceState[] = [];
  #latency: ReturnType<GatewayMetrics['latency']> | undefined;
  #firstDone = false;

  constructor(exchange: Exchange, context: StreamContext) {
    this.#exchange = exchange;
    this.#context = context;
  }

  begin(id: string, prepared: Prepared): void {
    if (this.#exchange.ended || this.#prepared !== undefined) return;
    this.#exchange.begun(id, prepared);
    this.#id = id;
    this.#prepared = prepared;
    this.#latency = this.#context.metrics.latency(this.#exchange.surface.name, prepared.model);
    this.#choices = Array.from({ length: prepared.n }, () => ({ text: '', lastAt: 0, finish: null, logprobs: [] }));
  }

  text(choice: number, text: string, _tokens: number, logprobs?: readonly TokenLogprob[]): void {
    const state = this.#choices[choice];
    if (state === undefined || this.#exchange.ended) return;
    const now = this.#context.hub.now();
    if (state.lastAt !== 0) this.#latency?.between.observe((now - state.lastAt) / 1000);
    else if (!this.#firstDone) {
      this.#firstDone = true;
      this.#exchange.firstText(now);
      this.#latency?.first.observe((now - this.#exchange.startedAt) / 1000);
    }
    state.lastAt = now;
    state.text += text;
    if (logprobs !== undefined) state.logprobs.push(...logprobs);
  }

  finish(choice: number, reason: FinishReason): void {
    const state = this.#choices[choice];
    if (state !== undefined) state.finish = reason;
  }

  end(usage: Usage, answer?: DryRunAnswer): void {
    const prepared = this.#prepared;
    if (this.#exchange.ended) return;
    if (prepared === undefined) {
      this.fail(gatewayError('GWY_INTERNAL'));
      return;
    }
    const { api } = this.#exchange.surface;
    const pieces = this.#context.models.lookup(prepared.model)?.pieces;
    const choices = this.#choices.map(({ text, finish, logprobs }) => ({
      ...readAnswer(text, finish, prepared.answer),
      logprobs:
        prepared.logprobs === 0 || pieces === undefined
          ? 'null'
          : logprobsJson(api, pieces, logprobs, prepared.logprobs > 0, 0),
    }));
    const body = wholeResponse(api, this.#id, Math.floor(Date.now() / 1000), prepared.model, choices, usage, answer);
    writeWhole(this.#exchange, body);
    this.#exchange.complete(usage);
  }

  fail(error: RequestError): void {
    this.#exchange.refuse(error);
  }
}
