/** One burst of requests through several gateways of a real node: routers that decide at the same moment must not choose the same workers. */
import { setTimeout as sleep } from 'node:timers/promises';
import { openStreams, startFaultNode } from '../../scenarios/index.js';
import { type Figure, figure } from '../outcome.js';

const gateways = 4;
const workers = 8;
const requests = 500;
const promptWords = 64;
const answerTokens = 16;
/** Facts of a process are this old at most. */
const factsAgeMs = 1_600;

export async function burstPart(bursts: number, progress: (text: string) => void) {
  const shape = ['--prefill', '0', '--decode', `${workers}`, '--gateway', `${gateways}`];
  const node = await startFaultNode({
    flags: [...shape, '--engine', 'mock', '--model', 'mock', '--log-level', 'warn'],
    // A step that does not depend on how much there is to do: all of the burst is under way at once.
    env: { DYNACT_MOCK_STEP_MS: '20' },
  });
  try {
    let words = 0;
    const bodies = (count: number) =>
      Array.from({ length: count }, () => {
        // No two prompts begin alike: load alone decides.
        const prompt = Array.from({ length: promptWords }, () => ` tok${1000 + ((words++ * 7919) % 9000)}`).join('');
        return { model: 'mock', prompt, max_tokens: answerTokens, ignore_eos: true, stream: true, seed: words };
      });
    const counts = async (fact: string, role: string) => {
      await sleep(factsAgeMs);
      const { processes } = await node.status();
      return processes.filter((each) => each.role === role).map(({ facts }) => Number(facts[fact] ?? 0));
    };
    const burst = async (count: number) => {
      const all = await openStreams(node.port, '/v1/completions', bodies(count)).ended(60_000);
      const bad = all.find(({ end }) => end !== 'complete');
      if (bad !== undefined) throw new Error(`a request of the burst ended ${bad.end} ${bad.detail}`);
    };
    progress(`a burst of ${requests} through ${gateways} gateways to ${workers} workers`);
    await burst(64);
    const ratios: number[] = [];
    const shares: number[][] = [];
    let before = await counts('served', 'decode');
    let doors = await counts('served', 'gateway');
    for (let round = 0; round < bursts; round++) {
      await burst(requests);
      const [after, through] = [await counts('served', 'decode'), await counts('served', 'gateway')];
      const share = after.map((count, worker) => count - (before[worker] as number));
      const total = share.reduce((sum, count) => sum + count, 0);
      if (total !== requests) throw new Error(`${total} of ${requests} requests were counted`);
      ratios.push((Math.max(...share) * workers) / requests);
      shares.push(
        share,
        through.map((count, gateway) => count - (doors[gateway] as number)),
      );
      before = after;
      doors = through;
    }
    const figures: Figure[] = [
      figure(
        'burst_spread',
        `${requests} requests at once, ${gateways} gateways, ${workers} workers: most / mean`,
        '×',
        Math.max(...ratios),
        {
          atMost: 1.3,
        },
      ),
    ];
    return {
      figures,
      details: { ratios, shares },
      note: `burst: real processes, mock engine, ${bursts} bursts, the worst counts`,
    };
  } finally {
    await node.stop();
  }
}
