/**
 * What routing by cached prefix gains, and what it costs. Conversations with a shared beginning, turn after turn, through two nodes that
 * differ in `routing.mode` alone, interleaved; the mock engine takes Dynamo's times for prompts it has not cached. Then the router alone, over
 * 64 workers with a prompt of 12,000 tokens, by stage.
 */
import {
  costConfig,
  createKernel,
  oneClass,
  type Ref,
  type RouterMessage,
  routerActor,
  seededDispatcher,
  virtualWorld,
} from '../actors/index.js';
import { createKvIndex, openMockVocabulary, sequenceHashes } from '../gpu/index.js';
import { address, type InstanceInfo } from '../transport/index.js';
import type { Bench } from './bench.js';
import { type DynactNode, startDynact } from './dynact-node.js';
import { type FirstTokenClient, openFirstTokenClient } from './first-token.js';
import { type Figure, figure, ratio } from './outcome.js';
import { interleaved, median, quantile } from './statistics.js';

const blockTokens = 64;
const turns = 6;
const clients = 4;
const words = (seed: number, count: number) =>
  Array.from(
    { length: count },
    (_, i) => `w${(Math.imul(seed * 65_537 + i + 1, 2_654_435_761) >>> 0).toString(36)}`,
  ).join(' ');

/** Prompts of one conversation, each the one before and more; the first words are the same in all conversations. */
function conversation(seed: number): string[] {
  let text = words(0, 60);
  return Array.from({ length: turns }, (_, turn) => {
    text += ` ${words(seed * turns + turn + 1, 80)}`;
    return text;
  });
}

interface Side {
  readonly node: DynactNode;
  readonly clients: readonly FirstTokenClient[];
}

async function open(mode: string): Promise<Side> {
  const topology = ['--prefill', '4', '--decode', '1', '--routing', mode];
  const node = await startDynact({ flags: ['--engine', 'mock', '--model', 'mock', '--speedup', '1', ...topology] });
  const open = Array.from({ length: clients }, () => openFirstTokenClient(node.port));
  return { node, clients: await Promise.all(open) };
}

/** Each client has one conversation after the other. Times to first token of all turns but the first. */
async function converse({ clients: all }: Side, conversations: readonly (readonly string[])[]): Promise<number[]> {
  const times: number[] = [];
  let next = 0;
  const run = async (client: FirstTokenClient) => {
    for (let prompts = conversations[next++]; prompts !== undefined; prompts = conversations[next++]) {
      for (const [turn, prompt] of prompts.entries()) {
        const body = JSON.stringify({ model: 'mock', prompt, max_tokens: 2, stream: true });
        const time = await client.ask('/v1/completions', body);
        if (turn > 0) times.push(time);
      }
    }
  };
  await Promise.all(all.map(run));
  return times;
}

async function counters({ node }: Side) {
  const text = await (await fetch(`http://127.0.0.1:${node.port}/metrics`)).text();
  const of = (name: string) => Number(new RegExp(`^dynact_router_${name}_tokens_total (\\d+)$`, 'm').exec(text)?.[1]);
  return { prompt: of('prompt'), cached: of('cached') };
}

/** The share of prompt tokens that a single cache without bound would have. */
function bound(conversations: readonly (readonly string[])[]): number {
  const vocabulary = openMockVocabulary('mock');
  const seen = new Set<bigint>();
  let cached = 0;
  let all = 0;
  for (const prompt of conversations.flat()) {
    const tokens = vocabulary.tokenize(prompt, { special: false, addBos: false });
    const hashes = [...sequenceHashes(tokens, blockTokens, '')];
    const end = hashes.findIndex((hash) => !seen.has(hash));
    cached += Math.min(end < 0 ? hashes.length : end, Math.floor((tokens.length - 1) / blockTokens)) * blockTokens;
    all += tokens.length;
    for (const hash of hashes) seen.add(hash);
  }
  return cached / all;
}

async function gain(rounds: number, perRound: number, progress: (text: string) => void): Promise<Figure[]> {
  const sides = { kv: await open('kv'), turns: await open('round-robin') };
  try {
    const batch = (round: number) => Array.from({ length: perRound }, (_, i) => conversation(round * perRound + i + 1));
    const results = await interleaved(rounds, {
      kv: (round) => {
        progress(`round ${round + 1} of ${rounds}`);
        return converse(sides.kv, batch(round));
      },
      turns: (round) => converse(sides.turns, batch(round)),
    });
    // The counters are read twice a second.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    const [kv, other] = await Promise.all([counters(sides.kv), counters(sides.turns)]);
    const hit = ({ prompt, cached }: typeof kv) => cached / prompt;
    const most = bound(Array.from({ length: rounds }, (_, round) => batch(round)).flat());
    const [ours, theirs] = [results.kv?.flat() ?? [], results.turns?.flat() ?? []];
    const at = (q: number) => [quantile(ours, q), quantile(theirs, q)] as const;
    return [
      ratio('hit_rate', 'prompt tokens from the cache, kv beside round-robin', 'of all', hit(kv), hit(other)),
      ratio('hit_of_bound', 'the same beside one cache without bound', 'of all', hit(kv), most, { atLeast: 0.9 }),
      ratio('ttft_p50_ratio', 'first token of a further turn, p50', 'ms', ...at(0.5), { atMost: 1 }),
      ratio('ttft_p99_ratio', 'first token of a further turn, p99', 'ms', ...at(0.99)),
    ];
  } finally {
    for (const side of Object.values(sides)) {
      for (const client of side.clients) client.close();
      await side.node.stop();
    }
  }
}

const pool = 32;
const promptTokens = 12_000;

/** Microseconds of CPU per call of a process that has run for a while: the median of slices, the first half thrown away. */
function micros(run: () => void): number {
  const slices = Array.from({ length: 40 }, () => {
    const start = process.cpuUsage();
    for (let i = 0; i < 100; i++) run();
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 100;
  });
  return median(slices.slice(20));
}

/** Half of 64 workers compute prompts, half decode; each of the first holds another length of this prompt, and all have work. */
function overhead(): Figure[] {
  const tokens = Uint32Array.from({ length: promptTokens }, (_, i) => (i * 7_919) % 151_000);
  const hashes = sequenceHashes(tokens, blockTokens, '');
  const held = (worker: number) => hashes.subarray(0, Math.floor((hashes.length * (worker + 1)) / pool));

  const dispatcher = seededDispatcher();
  const kernel = createKernel({ world: virtualWorld({}), dispatcher });
  const router: Ref<RouterMessage> = kernel.spawn(
    routerActor({
      gateway: 'g',
      mode: 'kv',
      blockTokens,
      cost: costConfig(),
      caches: { maxBytes: 256 * 1024 * 1024, assumeMs: 10_000 },
      queue: oneClass(1_000),
      inhibition: { firstMs: 5_000, longestMs: 60_000 },
    }),
    address('gateway', 'g', 'router'),
  );
  const replyTo: Ref<{ readonly type: string }> = kernel.spawn(
    { name: 'asker', start: () => null, handle: (state: null) => state },
    address('gateway', 'g', 'frontend'),
  );
  const tell = (message: RouterMessage) => kernel.tell(router, message);
  const index = createKvIndex();
  for (let worker = 0; worker < pool; worker++) {
    for (const component of ['prefill', 'decode'] as const) {
      const incarnation = `${component}-${worker}-a`;
      const of = { node: 'n', host: 'h', pid: 1, draining: false, model: 'm', fingerprint: 'f', slots: 64 };
      tell({ type: 'InstanceUp', info: { component, instance: incarnation, incarnation, ...of } as InstanceInfo });
      const ops = [{ op: 'stored', tier: 'device', hashes: held(worker).slice() }] as const;
      tell({ type: 'KvChange', incarnation, rank: 0, ops });
      index.apply(incarnation, 0, ops);
      dispatcher.drain();
    }
  }
  let num = 0;
  const request = () => ({
    num: ++num,
    attempt: 1,
    id: String(num),
    model: 'm',
    choices: 1,
    exclude: new Set<string>(),
    queueBy: Number.POSITIVE_INFINITY,
    promptTokens,
    hashes,
  });
  const begin = () => tell({ type: 'Route', request: request(), replyTo: replyTo as never });
  for (let i = 0; i < 200; i++) begin();
  dispatcher.drain();

  const hashing = micros(() => void sequenceHashes(tokens, blockTokens, ''));
  const lookup = micros(() => void index.find(hashes));
  const dryRun = { ...request() };
  const selecting = micros(() => {
    tell({ type: 'DryRun', request: dryRun, replyTo: replyTo as never });
    dispatcher.drain();
  });
  const whole = micros(() => {
    begin();
    const of = { num, attempt: 1 };
    tell({ type: 'FirstToken', ...of, cachedTokens: 0 });
    tell({ type: 'PrefillDone', ...of });
    tell({ type: 'Release', ...of, end: 'served' });
    dispatcher.drain();
  });
  const stage = (key: string, name: string, value: number) => figure(key, name, 'µs', value);
  return [
    stage('hash_us', `hashes of ${promptTokens} tokens`, hashing),
    stage('lookup_us', 'lookup in the index', lookup),
    stage('select_us', 'selection among 32 + 32 workers', selecting - lookup),
    stage('account_us', 'booking, first token, release, record', whole - selecting),
    figure('overhead_us', 'all of it', 'µs', hashing + whole, { atMost: 300 }),
  ];
}

export const routingBench: Bench = {
  summary: 'routing by cached prefix beside round-robin: hit rate, first token; and what a decision costs',
  help: `  --conversations N   of a round (8)
  --rounds N          rounds, each on both nodes (4)
  --overhead          only what a decision costs`,
  options: { conversations: { type: 'string' }, rounds: { type: 'string' }, overhead: { type: 'boolean' } },
  async run(options, progress) {
    const cost = overhead();
    if (options.overhead === true) return { figures: cost };
    const gained = await gain(Number(options.rounds ?? 4), Number(options.conversations ?? 8), progress);
    return {
      figures: [...gained, ...cost],
      notes: [
        `4 prefill workers and 1 decode worker, mock engine at its real speed, ${clients} conversations at a time of ${turns} turns`,
        'times in the router are of one turn of its actor: message, decision, answer',
      ],
    };
  },
};
