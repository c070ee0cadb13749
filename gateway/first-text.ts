/** When the first text of an answer came, and how the later ones followed: for metrics and the log. */
import type { Exchange } from './exchange.js';
import type { GatewayMetrics } from './gateway-metrics.js';
import type { StreamHub } from './stream-hub.js';

export class FirstText {
  #latency: ReturnType<GatewayMetrics['latency']> | undefined;
  #lastAt = 0;

  constructor(
    private readonly exchange: Exchange,
    private readonly context: { readonly hub: StreamHub; readonly metrics: GatewayMetrics },
  ) {}

  begin(model: string): void {
    this.#latency = this.context.metrics.latency(this.exchange.surface.name, model);
  }

  /** Some text of the answer's one choice has come. */
  seen(): void {
    const now = this.context.hub.now();
    if (this.#lastAt !== 0) this.#latency?.between.observe((now - this.#lastAt) / 1000);
    else {
      this.exchange.firstText(now);
      this.#latency?.first.observe((now - this.exchange.startedAt) / 1000);
    }
    this.#lastAt = now;
  }
}
