/** What routing by cached prefix and disaggregation gain, and what a decision costs. Parts, each of which stands alone. */
import type { Bench } from './bench.js';
import type { Figure } from './outcome.js';
import { burstPart } from './routing/burst.js';
import { conversationsPart } from './routing/conversations.js';
import { overheadPart } from './routing/overhead.js';
import { spreadPart } from './routing/spread.js';
import { streamsPart } from './routing/streams.js';
import { tracePart } from './routing/trace.js';

interface Found {
  readonly figures: readonly Figure[];
  readonly note: string;
  readonly details?: Readonly<Record<string, unknown>>;
}

type Settings = Readonly<Record<'rounds' | 'conversations' | 'prompts' | 'requests', number>> & {
  readonly trace: string | undefined;
};

type Part = (settings: Settings, progress: (text: string) => void) => Promise<Found>;

const parts: Readonly<Record<string, Part>> = {
  async conversations({ rounds, conversations }, progress) {
    const found = await conversationsPart(rounds, conversations, progress);
    return {
      ...found,
      note: `real engine: 2 + 2 workers, ${found.details.samples} further turns of 4-turn conversations with a shared beginning on each side`,
    };
  },
  trace: ({ trace, requests }, progress) => tracePart(trace, requests, progress),
  async streams({ prompts }, progress) {
    return {
      ...(await streamsPart(prompts, progress)),
      note: `between tokens: real engine, 6 streams, ${prompts} prompts one after the other; 1 + 1 workers beside 2 that do both`,
    };
  },
  async spread(_settings, progress) {
    return {
      figures: await spreadPart(progress),
      note: 'hot prefix and one client: 4 prefill workers, virtual time',
    };
  },
  burst: (_settings, progress) => burstPart(3, progress),
  overhead: () =>
    Promise.resolve({
      figures: overheadPart(),
      note: 'a decision: one turn of the router’s actor: message, decision, answer',
    }),
};

const number = (value: unknown, standard: number) => (value === undefined ? standard : Number(value));

export const routingBench: Bench = {
  summary: 'routing by cached prefix beside round-robin, prefill apart beside together, and what a decision costs',
  help: `  --part NAME,…       only these: ${Object.keys(parts).join(', ')}
  --conversations N   of a round (6)
  --rounds N          rounds of conversations, each on both nodes (2)
  --trace FILE        a Mooncake trace, JSON lines, gzip or plain (a synthetic one of the same shape)
  --requests N        its first requests only (3000)
  --prompts N         long prompts that arrive (3)
  --overhead          the same as --part overhead`,
  options: {
    part: { type: 'string' },
    conversations: { type: 'string' },
    rounds: { type: 'string' },
    trace: { type: 'string' },
    requests: { type: 'string' },
    prompts: { type: 'string' },
    overhead: { type: 'boolean' },
  },
  async run(options, progress) {
    const settings: Settings = {
      rounds: number(options.rounds, 2),
      conversations: number(options.conversations, 6),
      prompts: number(options.prompts, 3),
      requests: number(options.requests, 3_000),
      trace: options.trace === undefined ? undefined : String(options.trace),
    };
    const only = options.overhead === true ? 'overhead' : options.part;
    const names = only === undefined ? Object.keys(parts) : String(only).split(',');
    const figures: Figure[] = [];
    const notes: string[] = [];
    const details: Record<string, unknown> = {};
    for (const name of names) {
      const part = parts[name];
      if (part === undefined) throw new Error(`there is no part ${name}; parts are ${Object.keys(parts).join(', ')}`);
      const found = await part(settings, progress);
      figures.push(...found.figures);
      notes.push(found.note);
      if (found.details !== undefined) details[name] = found.details;
    }
    return { figures, notes, details };
  },
};
