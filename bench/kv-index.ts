/**
 * How fast the KV index is and how much memory it takes, on the prompts of a request trace. The reports of the workers come out of a plain
 * simulation that runs before the clock starts: each request goes to the worker that has most of it (if that is one block at most, which
 * all prompts share, to the one with fewest requests), which stores what it lacks and removes what it has used least recently. Then the
 * calls alone are timed: two blocks asked for, one reported.
 */
import { createKvIndex, type KvIndex } from '../gpu/index.js';
import type { KvOp } from '../transport/index.js';
import type { Bench } from './bench.js';
import { figure } from './outcome.js';
import { readTrace, synthesize } from './request-trace.js';
import { median } from './statistics.js';

/** Well mixed and 64 bits wide, as real hashes are. `tenant` tells copies of a trace apart. */
function hashesOf(prompt: Prompt, tenant: number): BigUint64Array {
  return BigUint64Array.from(prompt, (id) => {
    let x = BigInt.asUintN(64, (BigInt(id) + (BigInt(tenant) << 40n) + 1n) * 0x9e37_79b9_7f4a_7c15n);
    x = BigInt.asUintN(64, (x ^ (x >> 30n)) * 0xbf58_476d_1ce4_e5b9n);
    return x ^ (x >> 31n);
  });
}

/** Block ids of one request's prompt, prefix first. */
type Prompt = readonly number[];

interface Call {
  /** Undefined: a lookup. */
  readonly worker: string | undefined;
  readonly hashes: BigUint64Array;
  readonly ops: readonly KvOp[];
}

interface Shape {
  readonly workers: number;
  /** Blocks that a worker can hold. */
  readonly capacity: number;
  readonly copies: number;
}

/** What the index is told and asked, in order. */
function record(trace: readonly Prompt[], { workers, capacity, copies }: Shape): Call[] {
  const fleet = Array.from({ length: workers }, (_, n) => ({
    name: `worker-${n}`,
    held: new Set<bigint>(),
    served: 0,
  }));
  const calls: Call[] = [];
  let owed = 0;
  for (let at = 0; at < trace.length * copies; at++) {
    const hashes = hashesOf(trace[Math.floor(at / copies)] as Prompt, at % copies);
    const blocks = [...hashes];
    const overlap = (held: Set<bigint>) => {
      const end = blocks.findIndex((hash) => !held.has(hash));
      return end < 0 ? blocks.length : end;
    };
    let best = fleet[0] as (typeof fleet)[number];
    let most = -1;
    for (const each of fleet) {
      const overlapping = overlap(each.held);
      const has = overlapping > 1 ? overlapping : 0;
      if (has > most || (has === most && each.served < best.served)) [best, most] = [each, has];
    }
    best.served += 1;
    const stored = blocks.filter((hash) => !best.held.has(hash));
    // A set keeps the order of insertion: what is used again goes to its end, children before parents, so that parents stay longer.
    for (const hash of blocks.reverse()) {
      best.held.delete(hash);
      best.held.add(hash);
    }
    const removed: bigint[] = [];
    for (const hash of best.held) {
      if (best.held.size - removed.length <= capacity) break;
      removed.push(hash);
    }
    for (const hash of removed) best.held.delete(hash);
    const ops: KvOp[] = [];
    if (stored.length > 0) ops.push({ op: 'stored', tier: 'device', hashes: BigUint64Array.from(stored) });
    if (removed.length > 0) ops.push({ op: 'removed', tier: 'device', hashes: BigUint64Array.from(removed) });
    // Two blocks asked for per block reported: the prompt is looked up again while that is owed.
    owed += 2 * (stored.length + removed.length);
    do {
      calls.push({ worker: undefined, hashes, ops: [] });
      owed -= hashes.length;
    } while (owed > 0);
    calls.push({ worker: best.name, hashes, ops });
  }
  return calls;
}

interface Measured {
  readonly seconds: number;
  /** Blocks of the prompts looked up, and of those how many the index had to look at: it stops where no worker has more. */
  readonly asked: number;
  readonly walked: number;
  readonly reported: number;
  readonly index: KvIndex;
}

function replay(calls: readonly Call[], maxBytes: number): Measured {
  const index = createKvIndex({ maxBytes });
  let asked = 0;
  let walked = 0;
  let reported = 0;
  const start = process.cpuUsage();
  for (const { worker, hashes, ops } of calls) {
    if (worker === undefined) {
      let most = 0;
      for (const { device } of index.find(hashes)) most = Math.max(most, device);
      asked += hashes.length;
      walked += Math.min(hashes.length, most + 1);
    } else {
      index.apply(worker, 0, ops);
      for (const op of ops) if (op.op !== 'cleared') reported += op.hashes.length;
    }
  }
  const { user, system } = process.cpuUsage(start);
  return { seconds: (user + system) / 1e6, asked, walked, reported, index };
}

const number = (value: unknown, standard: number) => (value === undefined ? standard : Number(value));

export const kvIndexBench: Bench = {
  summary: 'block operations per second of the KV index on one core, and its memory',
  help: `  --trace FILE        a Mooncake trace, JSON lines, gzip or plain (a synthetic one of the same shape)
  --workers N         workers (16)
  --capacity N        blocks that a worker holds (32768)
  --copies N          so many tenants run the trace side by side, each with prompts of its own (4)
  --rounds N          rounds, each with an empty index; the first is thrown away (5)
  --bytes N           the bound of the index (1 GiB)`,
  options: {
    trace: { type: 'string' },
    workers: { type: 'string' },
    capacity: { type: 'string' },
    copies: { type: 'string' },
    rounds: { type: 'string' },
    bytes: { type: 'string' },
  },
  run(options, progress) {
    const requests = options.trace === undefined ? synthesize(12_000) : readTrace(String(options.trace));
    const trace = requests.map(({ blocks }) => blocks);
    const shape = {
      workers: number(options.workers, 16),
      capacity: number(options.capacity, 32_768),
      copies: number(options.copies, 4),
    };
    progress(`recording ${trace.length * shape.copies} requests over ${shape.workers} workers`);
    const calls = record(trace, shape);
    const rounds: Measured[] = [];
    for (let round = 0; round < number(options.rounds, 5); round++) {
      progress(`round ${round + 1}`);
      const measured = replay(calls, number(options.bytes, 2 ** 30));
      if (round > 0) rounds.push(measured);
    }
    const rate = (blocks: (round: Measured) => number) =>
      Math.round(median(rounds.map((round) => blocks(round) / round.seconds)));
    const { index, asked, walked, reported } = rounds[0] as Measured;
    const stats = index.stats();
    const perHolder = (stats.bytes - 8 * stats.nodes) / stats.holders;
    return Promise.resolve({
      figures: [
        figure(
          'block_ops_per_s',
          'blocks asked for and reported, CPU time of one core',
          'blocks/s',
          rate((r) => r.asked + r.reported),
          {
            atLeast: 5_000_000,
          },
        ),
        // A walk ends behind the last block that anybody has.
        figure(
          'walked_ops_per_s',
          'the same, counting only blocks walked over',
          'blocks/s',
          rate((r) => r.walked + r.reported),
        ),
        figure('bytes_per_block', 'memory per block and worker, beyond the hash', 'bytes', perHolder, { atMost: 100 }),
        figure(
          'requests_per_s',
          'lookups and reports',
          'calls/s',
          rate(() => calls.length),
        ),
      ],
      notes: [
        `${options.trace === undefined ? 'synthetic trace' : 'given trace'}: ${trace.length} requests × ${shape.copies}, ${shape.workers} workers of ${shape.capacity} blocks`,
        `${asked} blocks asked for (${walked} walked), ${reported} reported; ${stats.nodes} blocks held in ${stats.holders} places, ${stats.bytes} bytes`,
      ],
      details: { ...stats, asked, walked, reported, seconds: rounds.map(({ seconds }) => seconds) },
    });
  },
};
