/** What handing KV over costs each side, and how long decoding stands still when a long prompt arrives. */
import { readdirSync } from 'node:fs';
import type { Bench } from './bench.js';
import { drive, promptOf, sharedNow } from './engine-driver.js';
import { benchModel, openEngine } from './model.js';
import { figure } from './outcome.js';
import { sideThreadsCpuNs } from './processes.js';
import { median, quantile } from './statistics.js';

const shortTokens = 128;
const longTokens = 2048;
const streams = 8;

export const handoffBench: Bench = {
  summary: 'cost of handing KV over, per side, and the pause it makes in decoding',
  help: '  --rounds N          hand-offs of each kind (30)',
  options: { rounds: { type: 'string' } },
  async run(options, progress) {
    const rounds = Number(options.rounds ?? 30);
    const model = await benchModel();
    // No prefix cache: every hand-off moves every block.
    const shared = { threads: 1, cacheBytes: 0, sequenceTokens: longTokens + 512 };
    const p = await openEngine(model, { ...shared, slots: 2, exportBlocks: 256, owner: 'bench-prefill' });
    const d = await openEngine(model, { ...shared, slots: streams + 1, owner: 'bench-decode' });
    const [prefill, decode] = [drive(p), drive(d)];
    const { vocabTokens } = p.card;
    try {
      progress(`${rounds} hand-offs of ${shortTokens} tokens`);
      const exportMs: number[] = [];
      const importMs: number[] = [];
      const prefillMs: number[] = [];
      for (let round = -3; round < rounds; round++) {
        const ask = { prompt: promptOf(round + 10, shortTokens, vocabTokens), maxTokens: 2 };
        const before = p.cpu();
        const prefilled = await prefill.prefill(ask);
        const after = await settledCpu(p.cpu);
        const cpuBefore = d.cpu();
        const sideBefore = otherThreads();
        await decode.takeOver(ask, prefilled);
        const cpuAfter = await settledCpu(d.cpu);
        const sideAfter = otherThreads();
        prefill.release(prefilled.key);
        if (round < 0) continue;
        // Whatever the engine thread did that is not the library's: reading the state, checksums, sampling, the step's bookkeeping.
        exportMs.push(after.totalMs - before.totalMs - (after.decodeMs - before.decodeMs));
        prefillMs.push(after.decodeMs - before.decodeMs);
        // The fetch thread copies and verifies; the engine thread writes the state.
        importMs.push((sideAfter - sideBefore) / 1e6 - (cpuAfter.decodeMs - cpuBefore.decodeMs));
      }
      progress(`arrivals of ${longTokens} tokens beside ${streams} streams`);
      const stalls = await stallsOf(prefill, decode, vocabTokens, Math.max(5, Math.round(rounds / 3)));
      const [get, set, compute] = [median(exportMs), median(importMs), median(prefillMs)];
      return {
        figures: [
          figure('handoff_export_ms', `${shortTokens} tokens, prefill side: get + checksum`, 'ms', get, {
            atMost: 0.5,
          }),
          figure('handoff_import_ms', `${shortTokens} tokens, decode side: copy + verify + place + set`, 'ms', set, {
            atMost: 0.5,
          }),
          figure('handoff_share', 'both, of the time to compute the prompt', '%', (100 * (get + set)) / compute, {
            atMost: 1,
          }),
          figure('decode_stall_ms', `decode stall per arrival of ${longTokens} tokens`, 'ms', median(stalls.stalls), {
            atMost: 5,
          }),
        ],
        notes: [
          `CPU time of every native thread outside llama_decode; computing ${shortTokens} tokens takes ${compute.toFixed(1)} ms`,
          `undisturbed step with ${streams} streams ${stalls.step.toFixed(1)} ms; longest stall ${quantile(stalls.stalls, 1).toFixed(1)} ms`,
        ],
        details: { exportMs, importMs, prefillMs, ...stalls },
      };
    } finally {
      await Promise.all([prefill.stop(), decode.stop()]);
    }
  },
};

/** The engine thread's CPU once it has gone back to sleep: its counter moves at the end of a step. */
async function settledCpu(cpu: () => { totalMs: number; decodeMs: number }) {
  for (let last = cpu(); ; ) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    const next = cpu();
    if (next.totalMs === last.totalMs) return next;
    last = next;
  }
}

const otherThreads = () => sideThreadsCpuNs(process.pid, readdirSync(`/proc/${process.pid}/task`));

type Driver = ReturnType<typeof drive>;

/**
 * One prompt, handed over again and again to an engine that decodes `streams` others: each time the step in which it arrives,
 * minus the median step around it.
 */
async function stallsOf(prefill: Driver, decode: Driver, vocabTokens: number, arrivals: number) {
  const ask = { prompt: promptOf(1, longTokens, vocabTokens), maxTokens: 2 };
  const prefilled = await prefill.prefill(ask);
  const background = Array.from({ length: streams }, (_, stream) =>
    decode.generate({ prompt: promptOf(1000 + stream, 64, vocabTokens), maxTokens: 40 + arrivals * 20 }),
  );
  const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
  await sleep(500);
  const marks: { begin: number; end: number }[] = [];
  for (let arrival = 0; arrival < arrivals; arrival++) {
    const begin = sharedNow();
    const { at } = await decode.takeOver(ask, prefilled);
    marks.push({ begin, end: at[0] as number });
    await sleep(150);
  }
  await decode.endAll();
  const { at: steps } = (await Promise.all(background))[0] as { at: readonly number[] };
  const gaps = steps.slice(1).map((at, index) => ({ at, ms: at - (steps[index] as number) }));
  const calm = gaps.filter(({ at }) => !marks.some(({ begin, end }) => at >= begin && at <= end + 100));
  const step = median(calm.map(({ ms }) => ms));
  const stalls = marks.map(({ begin, end }) => {
    // The step that ends with the commit, and those that shared the core with the copy before it.
    const during = gaps.filter(({ at, ms }) => at > begin && at - ms < end);
    return during.reduce((sum, { ms }) => sum + Math.max(0, ms - step), 0);
  });
  return { stalls, step };
}
