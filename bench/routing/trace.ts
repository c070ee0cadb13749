/**
 * Routing by cached prefix on a request trace: how much of the prompts is served from caches, beside routing by turns and beside one cache
 * without bound. Virtual time; lengths and times are scaled down alike, so that a block of the trace is a block of the engines.
 */
import type { SelectionMode } from '../../actors/index.js';
import { type Figure, ratio } from '../outcome.js';
import { readTrace, synthesize, type TracedRequest, tracedBlockTokens } from '../request-trace.js';
import { quantile } from '../statistics.js';
import { type Arrival, blockOf, joined, type Run, serve } from './fleet.js';

const blockTokens = 64;
const shrink = tracedBlockTokens / blockTokens;
/** The hour of the trace in four minutes: its workers are then busy about half of the time. */
const faster = 15;
/** Decoding is not what is measured: answers are as short as keeps some of them under way. */
const answersShrink = 64;
/** A block that is cached counts for so many to compute, beside the default of one: whoever leaves its cache pays for that once a turn. */
const largeCredit = 2;

/** Token for token the prompt of a traced request: its whole blocks by their ids, and what is left over. */
function arrival({ at, promptTokens, answerTokens, blocks }: TracedRequest): Arrival {
  const length = Math.max(1, Math.ceil(promptTokens / shrink));
  return {
    at: at / faster,
    prompt: () => joined(blocks.map((id, index) => blockOf(id, Math.min(blockTokens, length - index * blockTokens)))),
    answerTokens: 1 + Math.floor(answerTokens / answersShrink),
  };
}

/** The share of prompt tokens that one cache without bound would have had. */
function bound(trace: readonly TracedRequest[]): number {
  const seen = new Set<number>();
  let cached = 0;
  let all = 0;
  for (const { promptTokens, blocks } of trace) {
    const length = Math.max(1, Math.ceil(promptTokens / shrink));
    const whole = Math.floor((length - 1) / blockTokens);
    const end = blocks.findIndex((id) => !seen.has(id));
    cached += Math.min(end < 0 ? blocks.length : end, whole) * blockTokens;
    all += length;
    for (const id of blocks.slice(0, Math.floor(length / blockTokens))) seen.add(id);
  }
  return cached / all;
}

const hitRate = ({ served }: Run): number => {
  const sum = (of: (each: Run['served'][number]) => number) => served.reduce((total, each) => total + of(each), 0);
  return sum(({ cachedTokens }) => cachedTokens) / sum(({ promptTokens }) => promptTokens);
};

export async function tracePart(
  path: string | undefined,
  requests: number,
  progress: (text: string) => void,
): Promise<{ readonly figures: Figure[]; readonly note: string }> {
  const trace = path === undefined ? synthesize(requests) : readTrace(path).slice(0, requests);
  const run = async (mode: SelectionMode, credit?: number) => {
    progress(`${trace.length} requests of the trace, ${mode}${credit === undefined ? '' : `, credit ${credit}`}`);
    return serve(
      {
        prefill: 4,
        decode: 2,
        mode,
        indexBytes: 256 * 1024 * 1024,
        engine: {
          speedup: 1,
          slots: 64,
          cacheBlocks: 65_536,
          poolBlocks: 65_536,
          kvBlocks: 65_536,
          kvBytesPerToken: 4,
        },
      },
      trace.map(arrival),
      credit,
    );
  };
  const kv = await run('kv');
  const turns = await run('round-robin');
  const sticky = await run('kv', largeCredit);
  const most = bound(trace);
  const [hits, theirs] = [hitRate(kv), hitRate(turns)];
  const at = (q: number) => [quantile(kv.firstTokenMs, q), quantile(turns.firstTokenMs, q)] as const;
  const busy = [...kv.busy.values()].map((share) => `${Math.round(100 * share)}`).join(', ');
  return {
    figures: [
      ratio('trace_hit_rate', 'trace: prompt tokens from the cache, kv beside round-robin', 'of all', hits, theirs),
      ratio('trace_hit_of_bound', 'trace: the same beside one cache without bound', 'of all', hits, most, {
        atLeast: 0.9,
      }),
      ratio('trace_ttft_p50', 'trace: first token, p50, virtual time', 'ms', ...at(0.5), { atMost: 1 }),
      ratio('trace_ttft_p99', 'trace: first token, p99, virtual time', 'ms', ...at(0.99), { atMost: 1 }),
      ratio(
        'trace_hit_of_bound_credit',
        `trace: the same with a credit of ${largeCredit}`,
        'of all',
        hitRate(sticky),
        most,
      ),
      ratio(
        'trace_ttft_p99_credit',
        `trace: first token with a credit of ${largeCredit} beside one of 1, p99`,
        'ms',
        quantile(sticky.firstTokenMs, 0.99),
        at(0.99)[0],
      ),
    ],
    note: `trace: ${trace.length} requests ${path === undefined ? 'of the same shape as' : 'of'} the conversation trace over 4 prefill workers, virtual time; busy ${busy} % of the time`,
  };
}
