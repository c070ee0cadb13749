/** Traces of requests to replay: one published with Mooncake, or one of the same shape that needs no file. */
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

export interface TracedRequest {
  /** Milliseconds since the first. */
  readonly at: number;
  readonly promptTokens: number;
  readonly answerTokens: number;
  /** Of 512 tokens each, the last perhaps of fewer; equal ids mean equal prefixes up to and including that block. */
  readonly blocks: readonly number[];
}

export const tracedBlockTokens = 512;

/** One line each: `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [n, …]}`, gzip or plain. */
export function readTrace(path: string): TracedRequest[] {
  const bytes = readFileSync(path);
  const text = (bytes[0] === 0x1f ? gunzipSync(bytes) : bytes).toString('utf8');
  const lines = text.split('\n').filter((line) => line !== '');
  return lines.map((line) => {
    const row = JSON.parse(line) as Record<'timestamp' | 'input_length' | 'output_length', number> & {
      readonly hash_ids: number[];
    };
    return {
      at: row.timestamp,
      promptTokens: row.input_length,
      answerTokens: row.output_length,
      blocks: row.hash_ids,
    };
  });
}

/**
 * Conversations of the same shape as the published trace: 12,000 requests an hour of 24 blocks on average, one block common to all, four of
 * ten a further turn of a conversation that is under way.
 */
export function synthesize(requests: number): TracedRequest[] {
  let state = 20_260_131;
  const draw = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  let fresh = 1;
  const grow = (prompt: readonly number[], blocks: number) => [
    ...prompt,
    ...Array.from({ length: blocks }, () => fresh++),
  ];
  const open: (readonly number[])[] = [];
  return Array.from({ length: requests }, (_, index) => {
    const again = open.length > 0 && draw() < 0.4 ? Math.floor(draw() * open.length) : -1;
    const length = Math.min(240, Math.ceil(-Math.log(1 - draw()) * (again < 0 ? 18 : 6)));
    const blocks = grow(again < 0 ? [0] : (open[again] as readonly number[]), length);
    if (again < 0) open.push(blocks);
    else open[again] = blocks;
    if (open.length > 500) open.splice(Math.floor(draw() * open.length), 1);
    return { at: index * 300, promptTokens: blocks.length * tracedBlockTokens, answerTokens: 340, blocks };
  });
}
