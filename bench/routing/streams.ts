/**
 * What streams that are being answered notice of long prompts that arrive: a node of one prefill and one decode worker beside one whose two
 * workers do both, on the embedded engine.
 */
import { type ClientRequest, request } from 'node:http';
import { startDynact } from '../dynact-node.js';
import { openFirstTokenClient } from '../first-token.js';
import { type Figure, ratio } from '../outcome.js';
import { median, quantile } from '../statistics.js';

const streams = 6;
/** More than any run makes: a stream that ended early would flatter the result. */
const streamTokens = 1_600;
const longWords = 220;
const warmTokens = 8;

interface Stream {
  /** When each piece of text came, by performance.now(). */
  readonly at: number[];
  ended: boolean;
  readonly request: ClientRequest;
}

function openStream(port: number, model: string, prompt: string): Stream {
  const body = JSON.stringify({ model, prompt, max_tokens: streamTokens, stream: true, ignore_eos: true });
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
  const path = '/v1/completions';
  const asked = request({ host: '127.0.0.1', port, path, method: 'POST', headers, agent: false });
  const stream: Stream = { at: [], ended: false, request: asked };
  asked.on('response', (response) => {
    response.setEncoding('utf8');
    response.on('data', (text: string) => {
      const now = performance.now();
      for (const _ of text.matchAll(/^data: \{/gm)) stream.at.push(now);
    });
    response.on('close', () => {
      stream.ended = true;
    });
  });
  asked.on('error', () => {
    stream.ended = true;
  });
  asked.end(body);
  return stream;
}

const words = (seed: number, count: number) =>
  Array.from({ length: count }, (_, i) => `w${(seed * 7_919 + i * 104_729) % 46_656}`).join(' ');

interface Run {
  readonly p50: number;
  readonly p99: number;
  readonly longest: number;
  readonly firstTokenMs: number;
}

async function run(topology: readonly string[], prompts: number): Promise<Run> {
  const { port, model, stop } = await startDynact({ flags: [...topology, '--slots', '8', '--context-tokens', '2048'] });
  const client = await openFirstTokenClient(port);
  const open: Stream[] = [];
  try {
    for (let index = 0; index < streams; index++) open.push(openStream(port, model, words(index, 8)));
    while (open.some(({ at }) => at.length < warmTokens)) {
      if (open.some(({ ended }) => ended)) throw new Error('a stream ended at once');
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    const from = performance.now();
    const first: number[] = [];
    for (let index = 0; index < prompts; index++) {
      const body = { model, prompt: words(1_000 + index, longWords), max_tokens: 2, stream: true };
      first.push(await client.ask('/v1/completions', JSON.stringify(body)));
    }
    const to = performance.now();
    if (open.some(({ ended }) => ended)) throw new Error('a stream ended before the last prompt was answered');
    const gaps = open.flatMap(({ at }) =>
      at.slice(1).flatMap((when, index) => {
        const before = at[index] as number;
        return when > from && before < to ? [when - before] : [];
      }),
    );
    return {
      p50: quantile(gaps, 0.5),
      p99: quantile(gaps, 0.99),
      longest: quantile(gaps, 1),
      firstTokenMs: median(first),
    };
  } finally {
    client.close();
    for (const stream of open) stream.request.destroy();
    await stop();
  }
}

export async function streamsPart(
  prompts: number,
  progress: (text: string) => void,
): Promise<{ readonly figures: Figure[]; readonly details: Record<string, unknown> }> {
  progress('streams while long prompts arrive: prefill and decode apart');
  const apart = await run(['--prefill', '1', '--decode', '1'], prompts);
  progress('the same: two workers that do both');
  const together = await run(['--prefill', '0', '--decode', '2'], prompts);
  return {
    figures: [
      ratio(
        'itl_p99_ratio',
        'between tokens while long prompts arrive, p99, apart beside together',
        'ms',
        apart.p99,
        together.p99,
        {
          atMost: 0.5,
        },
      ),
      ratio('itl_p50_ratio', 'the same, p50', 'ms', apart.p50, together.p50),
      ratio('itl_longest_ratio', 'the same, longest', 'ms', apart.longest, together.longest),
      ratio('long_ttft_ratio', 'first token of the long prompts', 'ms', apart.firstTokenMs, together.firstTokenMs),
    ],
    details: { apart, together },
  };
}
