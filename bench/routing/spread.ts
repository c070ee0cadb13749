/** What routing by cached prefix must not do: heap everything onto the worker that has what all prompts share, or leave workers idle. */
import { type Figure, figure } from '../outcome.js';
import { type Arrival, blockOf, draws, joined, type Run, serve } from './fleet.js';

const workers = 4;
const options = { prefill: workers, decode: 2, mode: 'kv', engine: { speedup: 1, slots: 64 } } as const;

export interface HotPrefix {
  readonly requests: number;
  readonly perSecond: number;
  readonly sharedTokens: number;
}

/** Strangers' prompts with one beginning, which come when they like. */
export function hotPrefix({ requests, perSecond, sharedTokens }: HotPrefix): Arrival[] {
  const draw = draws(7);
  const shared = blockOf(0, sharedTokens);
  let at = 0;
  return Array.from({ length: requests }, (_, index) => {
    at += (-Math.log(1 - draw()) * 1_000) / perSecond;
    const own = 100 + Math.floor(draw() * 400);
    return { at, prompt: () => joined([shared, blockOf(index + 1, own)]), answerTokens: 8 };
  });
}

/** One prompt after the other, each when the one before is long done, none like another. */
const oneClient = (requests: number): Arrival[] =>
  Array.from({ length: requests }, (_, index) => ({
    at: index * 400,
    prompt: () => blockOf(index + 1, 300),
    answerTokens: 2,
  }));

/** Between the busiest and the idlest worker, as a share of the mean. */
export function spread(busy: Run['busy']): number {
  const shares = [...busy.values()];
  const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
  return (Math.max(...shares) - Math.min(...shares)) / mean;
}

export async function spreadPart(progress: (text: string) => void): Promise<Figure[]> {
  progress('a prefix that all share');
  const hot = await serve(options, hotPrefix({ requests: 2_000, perSecond: 60, sharedTokens: 640 }));
  progress('one client');
  const one = await serve(options, oneClient(200));
  const counts = new Map<string, number>();
  for (const { by } of one.served) counts.set(by, (counts.get(by) ?? 0) + 1);
  const least = counts.size < workers ? 0 : Math.min(...counts.values()) / one.served.length;
  return [
    figure('hot_prefix_spread', 'hot prefix: spread of the workers’ utilisation', 'of the mean', spread(hot.busy), {
      atMost: 0.2,
    }),
    figure('one_client_least_share', 'one client, no reuse: least share of 4 workers', 'of all', least, {
      atLeast: 0.15,
    }),
  ];
}
