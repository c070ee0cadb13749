/**
 * What handing KV over costs each side, and how long decoding stands still when a long prompt arrives: the time that the engine thread
 * spends on the arrival instead of on a step. Each is memory copied, so the same bytes are copied plainly in the same run.
 */
import { readdirSync } from 'node:fs';
import type { Bench } from './bench.js';
import { drive, promptOf, sharedNow } from './engine-driver.js';
import { benchModel, openEngine } from './model.js';
import { figure, ratio } from './outcome.js';
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
      const arrivals = Math.max(5, Math.round(rounds / 3));
      progress(`${arrivals} arrivals of ${longTokens} tokens, beside nothing and beside ${streams} streams`);
      const long = await prefill.prefill({ prompt: promptOf(1, longTokens, vocabTokens), maxTokens: 2 });
      const arrivalMs = await arrivalsOf(decode, d.cpu, long, vocabTokens, arrivals);
      const steps = await stepsAround(decode, long, vocabTokens, arrivals);
      const [short, whole] = [shortTokens, longTokens].map((tokens) => copyMs((bytesOf(long) / longTokens) * tokens));
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
          figure('decode_stall_ms', `decode stall per arrival of ${longTokens} tokens`, 'ms', median(arrivalMs), {
            atMost: 5,
          }),
          ratio('export_to_memcpy', 'prefill side, beside one plain copy of the bytes', 'ms', get, short as number),
          ratio('import_to_memcpy', 'decode side, beside one plain copy', 'ms', set, short as number),
          ratio('stall_to_memcpy', 'stall, beside one plain copy', 'ms', median(arrivalMs), whole as number),
        ],
        notes: [
          `CPU time of every native thread outside llama_decode; computing ${shortTokens} tokens takes ${compute.toFixed(1)} ms`,
          `stall: CPU time of the engine thread outside llama_decode; longest ${quantile(arrivalMs, 1).toFixed(1)} ms`,
          `steps of ${streams} streams: ${steps.calm.toFixed(1)} ms undisturbed, ${steps.before.toFixed(1)} ms while the copy shares the cores, ` +
            `${steps.with.toFixed(1)} ms with the arrival in the batch (llama_decode attends over the longest sequence for all)`,
        ],
        details: { exportMs, importMs, prefillMs, arrivalMs, steps },
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

type Handed = Awaited<ReturnType<Driver['prefill']>>;
const bytesOf = ({ handoff }: Handed) => handoff.blocks.reduce((sum, { bytes }) => sum + bytes, 0);

/** One prompt, handed over again and again: what the engine thread does for it outside llama_decode. */
async function arrivalsOf(
  decode: Driver,
  cpu: () => { totalMs: number; decodeMs: number },
  long: Handed,
  vocabTokens: number,
  arrivals: number,
): Promise<number[]> {
  const ask = { prompt: promptOf(1, longTokens, vocabTokens), maxTokens: 2 };
  const all: number[] = [];
  for (let arrival = -2; arrival < arrivals; arrival++) {
    const before = await settledCpu(cpu);
    await decode.takeOver(ask, long);
    const after = await settledCpu(cpu);
    if (arrival >= 0) all.push(after.totalMs - before.totalMs - (after.decodeMs - before.decodeMs));
  }
  return all;
}

/** Steps of running streams: undisturbed, while an arrival is copied, and with it in the batch. Medians, ms. */
async function stepsAround(decode: Driver, long: Handed, vocabTokens: number, arrivals: number) {
  const ask = { prompt: promptOf(1, longTokens, vocabTokens), maxTokens: 2 };
  const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
  const asked = performance.now();
  await decode.generate({ prompt: promptOf(999, 64, vocabTokens), maxTokens: 1 });
  const promptMs = performance.now() - asked;
  const background = Array.from({ length: streams }, (_, stream) =>
    decode.generate({ prompt: promptOf(1000 + stream, 64, vocabTokens), maxTokens: 400 }),
  );
  // Until all of them decode, and some undisturbed steps.
  await sleep(promptMs * streams * 1.5);
  const calmFrom = sharedNow();
  await sleep(500);
  const marks: { begin: number; end: number }[] = [];
  for (let arrival = 0; arrival < arrivals; arrival++) {
    const begin = sharedNow();
    const { at } = await decode.takeOver(ask, long);
    marks.push({ begin, end: at[0] as number });
    await sleep(400);
  }
  await decode.endAll();
  const { at: times } = (await Promise.all(background))[0] as { at: readonly number[] };
  const gaps = times.slice(1).map((at, index) => ({ at, ms: at - (times[index] as number) }));
  const where = (which: (gap: { at: number; ms: number }) => boolean) => median(gaps.filter(which).map(({ ms }) => ms));
  return {
    calm: where(({ at, ms }) => at - ms > calmFrom && at < (marks[0]?.begin ?? 0)),
    before: where(({ at }) => marks.some(({ begin, end }) => at >= begin && at < end)),
    with: where(({ at, ms }) => marks.some(({ end }) => at > end && at - ms <= end + 1)),
  };
}

/** A plain copy of so many bytes between two buffers that are used already; median of 15. */
function copyMs(bytes: number): number {
  const [from, to] = [Buffer.alloc(bytes, 1), Buffer.alloc(bytes, 2)];
  const times = Array.from({ length: 15 }, () => {
    const started = performance.now();
    from.copy(to);
    return performance.now() - started;
  });
  return median(times);
}
