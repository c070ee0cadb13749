/**
 * Server-Sent Events of one response: gathered for a turn of the event loop, written in one piece, kept alive while nothing is said, and
 * cut off when its client does not read.
 */
import type { Exchange } from './exchange.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { HubStream, StreamHub } from './stream-hub.js';

export interface SseContext {
  readonly hub: StreamHub;
  readonly metrics: GatewayMetrics;
  /** Most bytes a client may leave unread. */
  readonly unsentBytes: number;
}

export class SseWriter implements HubStream {
  readonly #exchange: Exchange;
  readonly #context: SseContext;
  readonly #keepAlive: string;
  /** Events not yet given to the socket. */
  #out = '';
  /** `#out` is all ASCII: its characters are its bytes, and writing it costs half. */
  #ascii = true;
  #awake = false;
  /** Headers and first events are out; `raw` holds nothing back. */
  #flushed = false;
  #closed = false;
  #quietTicks = 0;

  /** `keepAlive`: the event or comment that says nothing. */
  constructor(exchange: Exchange, context: SseContext, keepAlive = ': keep-alive\n\n') {
    this.#exchange = exchange;
    this.#context = context;
    this.#keepAlive = keepAlive;
    exchange.onEnd(() => context.hub.remove(this));
  }

  /** Nothing may be written any more: the last event is on its way, or the exchange has ended. */
  get closed(): boolean {
    return this.#closed || this.#exchange.ended;
  }

  /** Status line and headers, which leave at once with the first events where there are any. */
  open(events: string, ascii = true): void {
    const { raw, startedAt } = this.#exchange;
    raw.writeHead(200, {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
      'openai-processing-ms': String(Math.round(performance.now() - startedAt)),
    });
    this.#context.hub.add(this);
    if (events === '') raw.flushHeaders();
    else this.write(events, ascii);
  }

  /** `ascii`: all of the text is. False is always right. */
  write(events: string, ascii = true): void {
    this.#quietTicks = 0;
    this.#out += events;
    if (!ascii) this.#ascii = false;
    if (this.#awake) return;
    this.#awake = true;
    this.#context.hub.wake(this);
  }

  /** The response ends after these events. */
  close(events: string, ascii = true): void {
    this.write(events, ascii);
    this.#closed = true;
  }

  flush(): void {
    this.#awake = false;
    const { raw } = this.#exchange;
    const out = this.#out;
    const ascii = this.#ascii;
    this.#out = '';
    this.#ascii = true;
    if (raw.destroyed || raw.writableEnded) return;
    if (this.#closed) {
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
    if (++this.#quietTicks >= 2) this.write(this.#keepAlive);
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant.
const asciiOnly = /^[\x00-\x7f]*$/;
export const isAscii = (text: string): boolean => asciiOnly.test(text);
