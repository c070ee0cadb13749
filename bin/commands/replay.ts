/** `dynact replay`: runs actors again on what the tape says they were told, and shows where they first do something else. */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { url as inspectorUrl, open as openInspector, waitForDebugger } from 'node:inspector';
import { inspect } from 'node:util';
import { recordParts, replayParts } from '../../supervisors/index.js';
import { type SourceOptions, sourceOf } from './source.js';
import { UsageError } from './usage.js';

export interface ReplayCommand extends SourceOptions {
  readonly from?: string;
  readonly to?: string;
  readonly until?: string;
  readonly step?: true;
  readonly break?: string;
  readonly inspect?: true;
  readonly json?: true;
}

type Parts = Awaited<ReturnType<typeof replayParts>>;
type Replayed = Awaited<ReturnType<Parts['replayLife']>>;
type Placed = Parameters<NonNullable<Parameters<Parts['replayLife']>[1] & object>['look'] & object>[0];
type Run = Parameters<NonNullable<Parameters<Parts['replayLife']>[1] & object>['look'] & object>[1];

export async function replay(name: string, options: ReplayCommand): Promise<void> {
  if (name.endsWith('.json')) return replaySchedule(name, options);
  const { livesOf, meant, replayLife, saidIn } = await replayParts();
  const { requestIdIn } = await recordParts();
  const range = {
    from: ordinal('from', options.from),
    to: ordinal('to', options.to),
    until: ordinal('until', options.until),
  };
  const source = await sourceOf(options);
  const lives = await livesOf(source).finally(() => source.close());
  const chosen = meant(lives, name, requestIdIn(name));
  if (chosen.length === 0) {
    const known = [...new Set(lives.map(({ actor }) => actor))].sort().join(', ');
    throw new UsageError(
      `nothing of ${name} is on the tape${known === '' ? ', which has no turns of anybody (tape.level off?)' : `: it has ${known}`}`,
    );
  }
  if (options.inspect) await debuggerAttached();
  const shows = options.step === true || range.from !== undefined || range.to !== undefined;
  const replayed: Replayed[] = [];
  for (const life of chosen) {
    const result = await replayLife(life, {
      ...(range.from !== undefined && { from: range.from }),
      ...(range.to !== undefined && { to: range.to }),
      ...(range.until !== undefined && { until: range.until }),
      ...(shows && { look: (placed: Placed, run: Run) => look(placed, run, options) }),
      ...(options.break !== undefined && {
        breakOn: options.break,
        atBreak: (placed: Placed, run: Run) => atBreak(placed, run, options),
      }),
      said: saidIn(lives),
    });
    replayed.push(result);
    if (!options.json) process.stdout.write(draw(result));
  }
  if (options.json) process.stdout.write(`${JSON.stringify(replayed)}\n`);
  if (replayed.some(({ outcome }) => outcome !== 'same')) process.exitCode = 1;
}

function ordinal(flag: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw new UsageError(`--${flag} is ${text}: the number of an entry, from 0, is wanted`);
}

/** An entry's number, what it was, and what came of it. */
async function look({ entry, at, source }: Placed, run: Run, { step, json }: ReplayCommand): Promise<void> {
  const { ordinal: number, type, outputs } = entry;
  if (json) return;
  const said = outputs.map(
    ({ kind, to, type: what }) => `    ${[kind, what, to && `to ${to}`].filter(Boolean).join(' ')}\n`,
  );
  process.stdout.write(`${number}  ${type}  ${new Date(at).toISOString()}  ${source}\n${said.join('')}`);
  if (step && process.stdin.isTTY) await pause(run);
}

async function atBreak({ entry }: Placed, run: Run, { inspect: attached }: ReplayCommand): Promise<void> {
  process.stderr.write(`before ${entry.ordinal} ${entry.type}: ${inspect(run.message(entry), { depth: 4 })}\n`);
  // biome-ignore lint/suspicious/noDebugger: it is what --inspect is for.
  if (attached) debugger;
  else if (process.stdin.isTTY) await pause(run);
}

/** Until Enter; `s` and Enter shows the state first. */
async function pause(run: Run): Promise<void> {
  process.stderr.write('[Enter: on, s: state, q: end] ');
  const [chunk] = (await once(process.stdin, 'data')) as [Buffer];
  const key = chunk.toString('utf8').trim();
  if (key === 'q') process.exit(0);
  if (key !== 's') return;
  process.stderr.write(`${inspect(run.state(), { depth: 3, maxArrayLength: 24 })}\n`);
  await pause(run);
}

async function debuggerAttached(): Promise<void> {
  openInspector(0, '127.0.0.1');
  process.stderr.write(`attach a debugger to ${inspectorUrl()} (chrome://inspect)\n`);
  waitForDebugger();
}

function draw({ actor, same, ms, outcome, why, difference }: Replayed): string {
  const rate = `${same} entries the same in ${(ms / 1_000).toFixed(2)} s`;
  if (outcome === 'same') return `${actor}: ${rate}\n`;
  if (difference === undefined) return `${actor}: ${rate}, then no further: ${why}\n`;
  const { ordinal: number, type, source, at, what, message, recorded, replayed, state } = difference;
  const list = (outputs: readonly string[]) =>
    outputs.length === 0 ? '    nothing' : outputs.map((each) => `    ${each}`).join('\n');
  return [
    `${actor}: ${rate}, then entry ${number}, ${type} at ${at} (${source}), comes out otherwise:`,
    `  ${what}`,
    `  message\n    ${message}`,
    `  then\n${list(recorded)}`,
    `  now\n${list(replayed)}`,
    `  state before\n    ${state}`,
    '',
  ].join('\n');
}

/** A schedule of the simulator is run again, whole: it is deterministic. */
async function replaySchedule(file: string, { json }: ReplayCommand): Promise<void> {
  const { readSchedule, simulate } = await import('../../scenarios/index.js');
  const { nodeParts, resolveConfig } = await import('../../supervisors/index.js');
  const schedule = readSchedule(await readFile(file, 'utf8'), file);
  if (typeof schedule === 'string') throw new UsageError(schedule);
  const { config } = await resolveConfig({ cwd: '/', env: {}, flags: {} });
  const trace = json ? {} : { trace: (line: string) => void process.stdout.write(`${line}\n`) };
  const result = await simulate(schedule, { parts: await nodeParts(), config, ...trace });
  if (json) process.stdout.write(`${JSON.stringify(result)}\n`);
  if (result.violations.length > 0) process.exitCode = 1;
}
