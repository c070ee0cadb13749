/** `npm run simulate`: schedules by the thousand, each another seed; the first that fails is made short and written to a file. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { hrtime, stderr, stdout } from 'node:process';
import { parseArgs } from 'node:util';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { nodeParts, resolveConfig } from '../supervisors/index.js';
import {
  drawSchedule,
  readSchedule,
  type Schedule,
  type SimulationResult,
  shrink,
  simulate,
} from './simulator/index.js';

const usage = `npm run simulate -- [options]

Runs whole deployments in virtual time, on a network and a process table that fail by seed, and checks after every event that
no client is told something wrong, late or twice, and that nothing is left behind. The same seed is the same run, to the byte.

  --seeds N       how many schedules to run                        (default 1000)
  --from N        the first seed                                   (default 1)
  --requests N    requests of each schedule                        (default 100)
  --faults N      most faults of each schedule                     (default 6)
  --cores N       seeds are shared out over so many threads        (default 1)
  --replay FILE   run the schedule in this file and print what happens
  --keep FOLDER   where the short schedule of a failure goes       (default ./simulated)
  --keep-going    do not stop at the first failure
  --json          one JSON line last: seeds, failed, requests_per_s
  --help
`;

const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '1000' },
    from: { type: 'string', default: '1' },
    requests: { type: 'string', default: '100' },
    faults: { type: 'string', default: '6' },
    cores: { type: 'string', default: '1' },
    replay: { type: 'string' },
    keep: { type: 'string', default: './simulated' },
    'keep-going': { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

/** Exits with a sentence unless it is a whole number that makes sense. */
function count(name: 'seeds' | 'from' | 'requests' | 'faults' | 'cores', least: number): number {
  const value = Number(values[name]);
  if (Number.isSafeInteger(value) && value >= least) return value;
  stderr.write(`--${name} is ${values[name]}: a whole number of at least ${least} is wanted\n`);
  process.exit(2);
}

if (values.help) {
  stdout.write(usage);
} else {
  const parts = await nodeParts();
  // Settings of the machine it runs on would make it another run.
  const { config } = await resolveConfig({ cwd: '/', env: {}, flags: {} });
  const run = (schedule: Schedule, trace?: (line: string) => void): Promise<SimulationResult> =>
    simulate(schedule, { parts, config, ...(trace && { trace }) });
  if (isMainThread) process.exitCode = values.replay === undefined ? await all(run) : await one(run, values.replay);
  else await share(run, workerData as Share);
}

type Run = (schedule: Schedule, trace?: (line: string) => void) => Promise<SimulationResult>;

async function one(run: Run, file: string): Promise<number> {
  const schedule = readSchedule(await readFile(file, 'utf8'), file);
  if (typeof schedule === 'string') {
    stderr.write(`${schedule}\n`);
    return 2;
  }
  const result = await run(schedule, values.json ? undefined : (line) => stdout.write(`${line}\n`));
  if (values.json) stdout.write(`${JSON.stringify(result)}\n`);
  return result.violations.length > 0 ? 1 : 0;
}

/** What one thread runs of all seeds. */
interface Share {
  readonly first: number;
  readonly every: number;
}

function options() {
  return { requests: count('requests', 1), faults: count('faults', 0) };
}

function seedsFrom() {
  return { from: count('from', 0), to: count('from', 0) + count('seeds', 1) };
}

async function share(run: Run, { first, every }: Share): Promise<void> {
  const { to } = seedsFrom();
  for (let seed = first; seed < to; seed += every) parentPort?.postMessage(await run(drawSchedule(seed, options())));
}

/** Results as they come: with one core in the order of seeds. */
async function results(run: Run, take: (result: SimulationResult) => Promise<boolean>): Promise<void> {
  const { from, to } = seedsFrom();
  const every = count('cores', 1);
  if (every === 1) {
    for (let seed = from; seed < to; seed++) if (!(await take(await run(drawSchedule(seed, options()))))) return;
    return;
  }
  const threads = Array.from({ length: every }, (_, at) => {
    const workerData: Share = { first: from + at, every };
    return new Worker(new URL(import.meta.url), { argv: process.argv.slice(2), workerData });
  });
  let last = Promise.resolve();
  let enough = false;
  const ends = threads.map(
    (thread) =>
      new Promise<void>((resolve, reject) => {
        thread.on('message', (result: SimulationResult) => {
          last = last.then(async () => {
            if (enough || (await take(result))) return;
            enough = true;
            for (const each of threads) void each.terminate();
          });
        });
        thread.on('error', reject);
        thread.on('exit', () => resolve());
      }),
  );
  await Promise.all(ends);
  await last;
}

async function all(run: Run): Promise<number> {
  const seeds = count('seeds', 1);
  const began = hrtime.bigint();
  const seconds = () => Number(hrtime.bigint() - began) / 1e9;
  const outcomes: Record<string, number> = {};
  let failed = 0;
  let requests = 0;
  let ran = 0;
  let said = 0;
  await results(run, async (result) => {
    ran++;
    requests += result.requests;
    for (const [outcome, times] of Object.entries(result.outcomes))
      outcomes[outcome] = (outcomes[outcome] ?? 0) + times;
    if (result.violations.length > 0) {
      failed++;
      stderr.write(`\nseed ${result.seed}: ${result.violations[0]}\n`);
      await keep(run, drawSchedule(result.seed, options()));
      if (!values['keep-going']) return false;
    }
    if (seconds() - said < (stderr.isTTY ? 0.5 : 10)) return true;
    said = seconds();
    const so = `${ran} of ${seeds} seeds, ${failed} failed, ${Math.round(requests / said)} requests/s`;
    stderr.write(stderr.isTTY ? `\r${so} ` : `${so}\n`);
    return true;
  });
  if (stderr.isTTY) stderr.write('\n');
  const rate = Math.round(requests / seconds());
  const told = Object.entries(outcomes).map(([outcome, times]) => `${times} ${outcome}`);
  stdout.write(`${ran} seeds, ${failed} failed; ${requests} requests (${told.join(', ')}), ${rate} requests/s\n`);
  if (values.json) stdout.write(`${JSON.stringify({ seeds: ran, failed, requests_per_s: rate })}\n`);
  return failed > 0 ? 1 : 0;
}

async function keep(run: Run, schedule: Schedule): Promise<void> {
  const short = await shrink(schedule, async (candidate) => (await run(candidate)).violations.length > 0, {
    progress: (text) => stderr.isTTY && stderr.write(`\rmaking it short: ${text}          `),
  });
  await mkdir(values.keep, { recursive: true });
  const file = join(values.keep, `seed-${schedule.seed}.json`);
  await writeFile(file, `${JSON.stringify(short, null, 2)}\n`);
  stderr.write(
    `\n${short.requests.length} requests and ${short.faults.length} faults are enough: npm run simulate -- --replay ${file}\n`,
  );
}
