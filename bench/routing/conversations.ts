/**
 * Conversations with a shared beginning, turn after turn, on the embedded engine: two nodes of two prefill and two decode workers that
 * differ in `routing.mode` alone, asked in turn.
 */
import { type DynactNode, startDynact } from '../dynact-node.js';
import { openFirstTokenClient } from '../first-token.js';
import { type Figure, ratio } from '../outcome.js';
import { interleaved, quantile } from '../statistics.js';

const turns = 4;
/** No multiple of the workers: by turns, a conversation would come back to where it was before by mere count. */
const clients = 3;
const sharedWords = 40;
const turnWords = 25;

/** Two to four tokens each, hardly one like another. */
const words = (seed: number, count: number) =>
  Array.from(
    { length: count },
    (_, i) => `w${((Math.imul(seed * 65_537 + i + 1, 2_654_435_761) >>> 0) % 46_656).toString(36)}`,
  ).join(' ');

/** Prompts of one conversation, each the one before and more; the first words are the same in all conversations. */
function conversation(seed: number): string[] {
  let text = words(0, sharedWords);
  return Array.from({ length: turns }, (_, turn) => {
    text += ` ${words(seed * turns + turn + 1, turnWords)}`;
    return text;
  });
}

const start = (mode: string): Promise<DynactNode> =>
  startDynact({
    flags: ['--prefill', '2', '--decode', '2', '--routing', mode, '--slots', '4', '--context-tokens', '1024'],
  });

/** Each client has one conversation after the other. Times to first token of all turns but the first. */
async function converse({ port, model }: DynactNode, conversations: readonly (readonly string[])[]): Promise<number[]> {
  const times: number[] = [];
  let next = 0;
  const run = async () => {
    // Opened when it is needed: a connection that says nothing for long is closed.
    const client = await openFirstTokenClient(port);
    try {
      for (let prompts = conversations[next++]; prompts !== undefined; prompts = conversations[next++]) {
        for (const [turn, prompt] of prompts.entries()) {
          const body = JSON.stringify({ model, prompt, max_tokens: 2, stream: true });
          const time = await client.ask('/v1/completions', body);
          if (turn > 0) times.push(time);
        }
      }
    } finally {
      client.close();
    }
  };
  await Promise.all(Array.from({ length: Math.min(clients, conversations.length) }, run));
  return times;
}

/** Prompt tokens so far: all, and those that no cache had. */
async function counters({ port }: DynactNode): Promise<{ readonly prompt: number; readonly computed: number }> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const of = (name: string) => Number(new RegExp(`^dynact_router_${name}_tokens_total (\\d+)$`, 'm').exec(text)?.[1]);
  const prompt = of('prompt');
  return { prompt, computed: prompt - of('cached') };
}

/** `perRound` conversations in each of `rounds` rounds, on both nodes. */
export async function conversationsPart(
  rounds: number,
  perRound: number,
  progress: (text: string) => void,
): Promise<{ readonly figures: Figure[]; readonly details: Record<string, unknown> }> {
  const nodes: DynactNode[] = [];
  try {
    for (const mode of ['kv', 'round-robin']) {
      progress(`starting a node of 2 + 2 workers, ${mode}`);
      nodes.push(await start(mode));
    }
    const [kv, byTurns] = nodes as [DynactNode, DynactNode];
    // What both sides have before the clock starts: warm kernels, and the shared beginning on each prefill worker.
    for (const node of nodes) await converse(node, [[words(0, sharedWords)], [words(0, sharedWords)]]);
    await settled();
    const before = await Promise.all([counters(kv), counters(byTurns)]);
    const batch = (round: number) => Array.from({ length: perRound }, (_, i) => conversation(round * perRound + i + 1));
    const results = await interleaved(rounds, {
      kv: (round) => {
        progress(`conversations on the real engine, round ${round + 1} of ${rounds}`);
        return converse(kv, batch(round));
      },
      turns: (round) => converse(byTurns, batch(round)),
    });
    await settled();
    const after = await Promise.all([counters(kv), counters(byTurns)]);
    const spent = (side: 0 | 1, of: 'prompt' | 'computed') => after[side][of] - before[side][of];
    const [ours, theirs] = [results.kv?.flat() ?? [], results.turns?.flat() ?? []];
    const at = (q: number) => [quantile(ours, q), quantile(theirs, q)] as const;
    const computed = [spent(0, 'computed'), spent(1, 'computed')] as const;
    return {
      figures: [
        ratio('computed_ratio', 'real engine: prompt tokens computed, kv beside round-robin', 'tokens', ...computed, {
          atMost: 0.9,
        }),
        ratio('ttft_p50_ratio', 'real engine: first token of a further turn, p50', 'ms', ...at(0.5), { atMost: 1 }),
        ratio('ttft_p99_ratio', 'real engine: first token of a further turn, p99', 'ms', ...at(0.99), { atMost: 1 }),
      ],
      details: { promptTokens: spent(0, 'prompt'), samples: ours.length, kv: ours, turns: theirs },
    };
  } finally {
    for (const node of nodes) await node.stop();
  }
}

/** A gateway's counters are read twice a second. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 1_000));
