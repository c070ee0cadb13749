/** What the whole prefill → decode path adds to the first token, beside a bare two-hop JetStream echo. */
import type { Bench } from './bench.js';
import { startDynact } from './dynact-node.js';
import { startEcho } from './echo.js';
import { openFirstTokenClient } from './first-token.js';
import { figure, ratio } from './outcome.js';
import { interleaved, quantile } from './statistics.js';

/** About what a Reserve command weighs. */
const echoBytes = 400;
const batch = 50;

export const ttftBench: Bench = {
  summary: 'time that the prefill → decode path adds to the first token',
  help: '  --requests N        requests of each side (1000)',
  options: { requests: { type: 'string' } },
  async run(options, progress) {
    const batches = Math.max(1, Math.round(Number(options.requests ?? 1000) / batch));
    const node = await startDynact({ flags: ['--engine', 'mock', '--model', 'mock', '--speedup', '0'] });
    const echo = await startEcho();
    const client = await openFirstTokenClient(node.port);
    try {
      let asked = 0;
      const body = () =>
        JSON.stringify({
          model: 'mock',
          messages: [{ role: 'user', content: `Question ${++asked}: when does the first token come?` }],
          max_tokens: 4,
          stream: true,
        });
      const many = async (once: () => Promise<number>): Promise<number[]> => {
        const times: number[] = [];
        for (let index = 0; index < batch; index++) times.push(await once());
        return times;
      };
      const payload = new Uint8Array(echoBytes);
      const sides = {
        dynact: () => many(() => client.ask('/v1/chat/completions', body())),
        echo: () => many(() => echo.once(payload)),
      };
      await interleaved(6, sides);
      const results = await interleaved(batches, {
        ...sides,
        dynact: (round) => {
          if (round % 5 === 0) progress(`${round * batch} requests`);
          return sides.dynact();
        },
      });
      const ours = (results.dynact ?? []).flat();
      const theirs = (results.echo ?? []).flat();
      return {
        figures: [
          figure('ttft_p50', 'first token, p50', 'ms', quantile(ours, 0.5), { atMost: 1.5 }),
          ratio(
            'ttft_p99_ratio',
            'first token, p99, beside a two-hop echo',
            'ms',
            quantile(ours, 0.99),
            quantile(theirs, 0.99),
            {
              atMost: 2,
            },
          ),
          ratio(
            'ttft_p50_ratio',
            'first token, p50, beside a two-hop echo',
            'ms',
            quantile(ours, 0.5),
            quantile(theirs, 0.5),
          ),
        ],
        notes: ['one client; the mock engine takes no time, so all of it is the path from request to token'],
        details: { p90: [quantile(ours, 0.9), quantile(theirs, 0.9)], max: [Math.max(...ours), Math.max(...theirs)] },
      };
    } finally {
      client.close();
      await Promise.all([node.stop(), echo.stop()]);
    }
  },
};
