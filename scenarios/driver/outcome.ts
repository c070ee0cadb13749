/** What became of streams and of the node that answered them. */
import { type FaultNode, poll } from './node.js';
import type { Stream } from './streams.js';

/** Longest time, in ms, between two pieces of text of one stream that ends after `since`. */
export function pauseAfter(all: readonly Stream[], since: number): number {
  let pause = 0;
  for (const { at } of all) {
    for (let index = 1; index < at.length; index++) {
      if ((at[index] as number) > since) pause = Math.max(pause, (at[index] as number) - (at[index - 1] as number));
    }
  }
  return pause;
}

const held = ['inFlight', 'waiting', 'kvBlocks', 'exportedBlocks', 'mailDepth', 'outbox', 'leaked'];

const idleMs = 30_000;
/** Facts of a process are this old at most. */
const factsAgeMs = 1_600;

/** Waits until every process is up and holds nothing; says what is held if that does not come. */
export async function settle(node: Pick<FaultNode, 'status'>): Promise<string[]> {
  const asked = performance.now();
  let left: string[] = ['no status'];
  await poll(idleMs, async () => {
    const { processes } = await node.status().catch(() => ({ processes: undefined }));
    if (processes === undefined) return undefined;
    left = processes.flatMap(({ instance, state, facts }) => {
      if (state !== 'up') return [`${instance} ${state}`];
      const busy = held.filter((name) => name in facts && facts[name] !== 0).map((name) => `${name} ${facts[name]}`);
      if (typeof facts.slots === 'string' && !facts.slots.startsWith('0/')) busy.push(`slots ${facts.slots}`);
      return busy.map((fact) => `${instance} ${fact}`);
    });
    // What was seen must be no old news.
    return left.length === 0 && performance.now() - asked > factsAgeMs ? true : undefined;
  });
  return left;
}

/** Why streams are not complete, with counts. */
export function reasons(all: readonly Stream[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { end, detail } of all) {
    if (end === 'complete') continue;
    const reason = detail === '' ? String(end) : `${end}: ${detail}`;
    counts[reason] = (counts[reason] ?? 0) + 1;
  }
  return counts;
}
