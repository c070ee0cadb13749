/** What recording costs: the same load on nodes that differ in `tape.level` alone, in turn. */
import type { Bench } from './bench.js';
import { type DynactNode, startDynact } from './dynact-node.js';
import { generateLoad, type LoadResult } from './loadgen.js';
import { type Outcome, ratio } from './outcome.js';
import { twoCores } from './processes.js';
import { interleaved, median } from './statistics.js';

const levels = ['off', 'metadata', 'full'] as const;
type Level = (typeof levels)[number];
const clients = 64;
const tokens = 64;
/** What runs for the first time is not compiled yet. */
const warmRequests = 40 * clients;

const body = JSON.stringify({
  model: 'mock',
  messages: [{ role: 'user', content: 'Question @@N@@: what does it cost to remember all this?' }],
  max_tokens: tokens,
  ignore_eos: true,
  stream: true,
});

export const tapeBench: Bench = {
  summary: 'throughput with the tape on, beside `tape.level off`',
  help: `  --rounds N          repetitions of each level (5)
  --seconds N         about how long one repetition takes (4)`,
  options: { rounds: { type: 'string' }, seconds: { type: 'string' } },
  async run(options, progress): Promise<Outcome> {
    const rounds = Number(options.rounds ?? 5);
    const seconds = Number(options.seconds ?? 4);
    const nodes = new Map<Level, DynactNode>();
    try {
      for (const level of levels) {
        nodes.set(
          level,
          await startDynact({
            flags: ['--engine', 'mock', '--model', 'mock', '--speedup', '0', '--slots', '256', '--tape', level],
            env: { DYNACT_ENGINE_PREFILL_SLOTS: '256' },
            cpus: twoCores(),
          }),
        );
      }
      const load = (level: Level, requests: number) => {
        const { port, pids } = nodes.get(level) as DynactNode;
        return generateLoad({ clients, requests, body, port, pids });
      };
      let requests = 0;
      for (const level of levels) {
        const warm = await load(level, warmRequests);
        if (level === 'off') requests = Math.ceil((seconds * warm.requests) / warm.seconds / clients) * clients;
      }
      const results = await interleaved(
        rounds,
        Object.fromEntries(
          levels.map((level) => [
            level,
            (round: number): Promise<LoadResult> => {
              progress(`${level}, round ${round + 1} of ${rounds}`);
              return load(level, requests);
            },
          ]),
        ),
      );
      const rate = (level: Level) => median((results[level] ?? []).map(({ eventsPerSecond }) => eventsPerSecond));
      const cost = (level: Level) => {
        const pid = (nodes.get(level) as DynactNode).pid('gateway');
        return median((results[level] ?? []).map((result) => (result.cpu(pid) * 1e6) / result.events));
      };
      const recorded = levels.filter((level) => level !== 'off');
      return {
        figures: recorded.flatMap((level) => [
          ratio(`tape_${level}_events`, `tape ${level}: rate`, 'events/s', rate(level), rate('off'), { atLeast: 0.9 }),
          ratio(`tape_${level}_cpu`, `tape ${level}: gateway CPU`, 'µs/event', cost(level), cost('off')),
        ]),
        notes: [`the peer is tape.level off; ${clients} clients, ${tokens} tokens each, engine as fast as it goes`],
        details: Object.fromEntries(
          levels.map((level) => [level, (results[level] ?? []).map(({ eventsPerSecond }) => eventsPerSecond)]),
        ),
      };
    } finally {
      await Promise.all([...nodes.values()].map((node) => node.stop()));
    }
  },
};
