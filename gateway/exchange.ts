/**
 * One HTTP exchange of a generation request: the response it is answered on, the tickets the frontend knows it by, and how it
 * ended. It ends exactly once; whatever comes later is ignored.
 */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { ClientStream, FrontendRequest, Prepared, RequestError, Usage } from '../actors/index.js';
import { errorHeaders } from './errors.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { Surface } from './surface.js';
import type { RequestSpan } from './tracing.js';

export type Outcome = 'complete' | 'failed' | 'cancelled' | 'refused';

export interface ExchangeContext {
  readonly metrics: GatewayMetrics;
  readonly log: Logger;
  /** Open exchanges; the gateway drains them when it stops. */
  readonly open: Set<Exchange>;
  /** Tells the frontend; must not lose it. */
  gone(ticket: number): void;
  submit(request: FrontendRequest): boolean;
}

export class Exchange {
  readonly raw: ServerResponse;
  readonly surface: Surface;
  readonly label: string;
  readonly startedAt = performance.now();
  readonly #context: ExchangeContext;
  readonly #span: RequestSpan | undefined;
  /** Tickets that the frontend still works on. */
  readonly #tickets = new Set<number>();
  #outcome: Outcome | undefined;
  #id = '';
  #model = '';
  #firstTextAt = 0;
  #usage: Usage | undefined;
  #onEnd: (() => void) | undefined;
  #answer: ClientStream | undefined;

  constructor(
    raw: ServerResponse,
    surface: Surface,
    label: string,
    context: ExchangeContext,
    span: RequestSpan | undefined,
  ) {
    this.raw = raw;
    this.surface = surface;
    this.label = label;
    this.#context = context;
    this.#span = span;
    context.metrics.opened();
    context.open.add(this);
    raw.on('close', () => this.settle(raw.writableFinished ? 'complete' : 'cancelled', 'client_gone'));
    raw.on('error', () => this.settle('cancelled', 'client_gone'));
    // The client may have left while its body was parsed: then `close` has been and will not come again.
    if (raw.destroyed || raw.socket?.destroyed === true) this.settle('cancelled', 'client_gone');
  }

  get ended(): boolean {
    return this.#outcome !== undefined;
  }

  /** Called once when the exchange ends, however it ends. */
  onEnd(listener: () => void): void {
    if (this.ended) listener();
    else this.#onEnd = listener;
  }

  /** What the client sees of this exchange. */
  answeredBy(answer: ClientStream): void {
    this.#answer = answer;
  }

  /** Ends it for the gateway's own reasons, in whatever way its answer can still say so. */
  abandon(error: RequestError): void {
    this.#answer?.fail(error);
  }

  ticket(ticket: number): void {
    this.#tickets.add(ticket);
  }

  /** The frontend has told the end of this ticket. */
  ticketDone(ticket: number): void {
    this.#tickets.delete(ticket);
  }

  begun(id: string, prepared: Prepared): void {
    this.#id = id;
    this.#model = prepared.model;
  }

  firstText(now: number): void {
    this.#firstTextAt = now;
  }

  complete(usage: Usage): void {
    this.#usage = usage;
    this.#tickets.clear();
    this.settle('complete', '');
  }

  /** The answer to a request that has not begun: a real status. */
  refuse(error: RequestError): void {
    if (this.ended) return;
    writeError(this.raw, error, performance.now() - this.startedAt, this.surface.error(error, this.label));
    this.settle(error.status < 500 ? 'refused' : 'failed', error.code ?? error.type);
  }

  /** Ends a connection that cannot be served further, e.g. because its client reads too slowly. */
  cut(code: string): void {
    this.settle('cancelled', code);
    this.raw.destroy();
  }

  /** The first call counts. Requests that the frontend still works on are given up. */
  settle(outcome: Outcome, code: string): void {
    if (this.ended) return;
    this.#outcome = outcome;
    const { metrics, open, log } = this.#context;
    open.delete(this);
    for (const ticket of this.#tickets) this.#context.gone(ticket);
    this.#tickets.clear();
    const totalMs = performance.now() - this.startedAt;
    const label = outcome === 'complete' ? '' : code;
    metrics.closed(this.surface.name, this.#model, outcome, label, totalMs / 1000);
    const usage = this.#usage;
    if (usage !== undefined) {
      metrics.tokens(this.#model, usage.promptTokens, usage.cachedTokens, usage.completionTokens);
    }
    const status = this.raw.statusCode;
    const facts = {
      label: this.label,
      id: this.#id,
      api: this.surface.name,
      model: this.#model,
      status: outcome === 'cancelled' ? 499 : status,
      outcome,
      code: label,
      firstTextMs: this.#firstTextAt === 0 ? -1 : round(this.#firstTextAt - this.startedAt),
      totalMs: round(totalMs),
      promptTokens: usage?.promptTokens ?? 0,
      completionTokens: usage?.completionTokens ?? 0,
    };
    log.info(facts, 'request');
    this.#span?.end(facts);
    this.#onEnd?.();
  }
}

const round = (value: number) => Math.round(value * 100) / 100;

/** An error as the whole response, `body` as the API that was asked says it. Does nothing when something was sent already. */
export function writeError(raw: ServerResponse, error: RequestError, processingMs: number, body: string): void {
  if (raw.headersSent || raw.destroyed) return;
  raw.writeHead(error.status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    'openai-processing-ms': String(Math.round(processingMs)),
    ...errorHeaders(error),
  });
  raw.end(body);
}
