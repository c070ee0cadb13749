/** What the gateway measures about itself. Seconds and bytes, as Prometheus wants them. */
import { type IntervalHistogram, monitorEventLoopDelay } from 'node:perf_hooks';
import type { RequestSummary } from '../actors/index.js';
import { Metrics, type Sample } from './metrics.js';

const firstTokenBounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];
const betweenTokensBounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30];
const durationBounds = [0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

export type GatewayMetrics = ReturnType<typeof createGatewayMetrics>;

export function createGatewayMetrics() {
  const metrics = new Metrics();
  const requests = metrics.counter('dynact_http_requests_total', 'Generation requests by API, outcome and error code.');
  const refused = metrics.counter('dynact_http_refused_total', 'Requests refused before they reached a frontend.');
  const first = metrics.histogram('dynact_time_to_first_token_seconds', 'Request to first text.', firstTokenBounds);
  const between = metrics.histogram('dynact_inter_token_seconds', 'Between texts of a choice.', betweenTokensBounds);
  const total = metrics.histogram('dynact_request_seconds', 'Request to the end of the answer.', durationBounds);
  const tokens = metrics.counter('dynact_tokens_total', 'Tokens of finished requests: prompt, cached, completion.');
  const attempts = metrics.counter('dynact_attempts_total', 'Dispatches to workers, migrations included.');
  const queued = metrics.histogram('dynact_queue_seconds', 'Waiting for a worker.', firstTokenBounds);
  const cut = metrics.counter('dynact_slow_readers_total', 'Streams cut off because their client read too slowly.');
  let lag: IntervalHistogram | undefined;
  let inFlight = 0;

  return {
    /** Per model and API, looked up once per request: these two are on the token path. */
    latency: (api: string, model: string) => ({
      first: first.with({ api, model }),
      between: between.with({ api, model }),
    }),
    opened(): void {
      inFlight++;
    },
    closed(api: string, model: string, outcome: string, code: string, seconds: number): void {
      inFlight--;
      requests.with({ api, model, outcome, code }).add(1);
      total.with({ api, model, outcome }).observe(seconds);
    },
    refused: (status: number, code: string) => refused.with({ status: String(status), code }).add(1),
    tokens(model: string, prompt: number, cached: number, completion: number): void {
      tokens.with({ model, kind: 'prompt' }).add(prompt);
      tokens.with({ model, kind: 'cached' }).add(cached);
      tokens.with({ model, kind: 'completion' }).add(completion);
    },
    slowReader: () => cut.with({}).add(1),
    summary(summary: RequestSummary): void {
      attempts.with({ model: summary.model }).add(summary.attempts);
      queued.with({ model: summary.model }).observe(summary.queueMs / 1000);
    },
    start(): void {
      lag = monitorEventLoopDelay({ resolution: 20 });
      lag.enable();
    },
    stop: () => lag?.disable(),
    text(samples: readonly Sample[]): string {
      const gauge = (name: string, help: string, value: number): Sample => ({ name, help, kind: 'gauge', value });
      const own = [gauge('dynact_requests_in_flight', 'Generation requests being answered.', inFlight)];
      own.push(gauge('process_resident_memory_bytes', 'Resident memory.', process.memoryUsage.rss()));
      const cpu = process.cpuUsage();
      const seconds = (cpu.user + cpu.system) / 1e6;
      own.push({ name: 'process_cpu_seconds_total', help: 'CPU time.', kind: 'counter', value: seconds });
      if (lag !== undefined) {
        const p99 = lag.percentile(99) / 1e9;
        own.push(gauge('dynact_event_loop_lag_p99_seconds', 'Since the last scrape; 20 ms is idle.', p99));
        own.push(gauge('dynact_event_loop_lag_max_seconds', 'Since the last scrape.', lag.max / 1e9));
        lag.reset();
      }
      return metrics.text([...own, ...samples]);
    },
  };
}
