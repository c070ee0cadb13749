import { writeFile } from 'node:fs/promises';
import { type RecordParts, recordParts } from '../../supervisors/index.js';
import { type SourceOptions, sourceOf } from './source.js';

export interface TraceOptions extends SourceOptions {
  readonly json?: true;
  readonly perfetto?: string;
}

type Trace = ReturnType<RecordParts['traceOf']>;

/** `dynact trace`: one request's timeline across processes. */
export async function trace(name: string, options: TraceOptions): Promise<void> {
  const { gather, perfettoOf, traceOf } = await recordParts();
  const source = await sourceOf(options);
  try {
    const traces = (await gather(source, name)).map((evidence) => traceOf(evidence));
    const last = traces.at(-1) as Trace;
    if (options.perfetto !== undefined) {
      await writeFile(options.perfetto, `${JSON.stringify(perfettoOf(last))}\n`);
      process.stderr.write(`wrote ${options.perfetto}: open it in https://ui.perfetto.dev\n`);
    }
    if (options.json) process.stdout.write(`${JSON.stringify(traces)}\n`);
    else if (options.perfetto === undefined) process.stdout.write(traces.map(drawTrace).join('\n'));
    if (traces.length > 1)
      process.stderr.write(`${traces.length} requests are called ${name}: oldest first${wrote(options)}\n`);
  } finally {
    await source.close();
  }
}

const wrote = ({ perfetto }: TraceOptions) => (perfetto === undefined ? '' : '; the file has the last');

const ms = (value: number) => (value < 0 ? 'none' : `${value.toFixed(value < 100 ? 2 : 0)} ms`);

export function drawTrace(trace: Trace): string {
  const { request, label, gateway, model, outcome, code, acceptedAt, attempts, promptTokens, completionTokens } = trace;
  const since = (at: number) => (at - acceptedAt).toFixed(2);
  const called = label === '' ? '' : `  x-request-id ${label}`;
  const ended = trace.totalMs < 0 ? '' : `, total ${ms(trace.totalMs)}`;
  const tokens = `${promptTokens} prompt tokens, ${completionTokens} completion tokens`;
  const head = [
    `${request}  ${outcome}${code === '' ? '' : ` ${code}`}${called}`,
    `  ${[gateway, model, tokens, `attempts ${attempts}`, ...(trace.choices > 1 ? [`choices ${trace.choices}`] : [])].join(', ')}`,
    `  accepted ${new Date(acceptedAt).toISOString()}, first token ${ms(trace.firstTokenMs)}${ended}`,
  ];
  const phases = trace.phases.map(({ name, attempt, where, from, to, cut }) => [
    `  ${attempt}`,
    name,
    where,
    since(from),
    to === 0 ? 'goes on' : since(to),
    to === 0 ? '' : (to - from).toFixed(2),
    cut === '' ? '' : `cut by ${cut}`,
  ]);
  const happenings = trace.happenings.map(({ at, attempt, from, to, type, detail, source }) => [
    `  ${since(at)}`,
    attempt === undefined ? '' : String(attempt),
    to === '' ? from : `${from} → ${to}`,
    type,
    detail,
    source,
  ]);
  return `${[
    ...head,
    '',
    ...table(['  attempt', 'phase', 'where', 'from', 'to', 'ms', ''], phases, new Set([3, 4, 5])),
    '',
    ...table(['  ms', 'attempt', 'who', 'what', '', 'recorded'], happenings, new Set([0])),
    ...(trace.missing.length === 0
      ? []
      : ['', 'not recorded, or not any more:', ...trace.missing.map((each) => `  ${each}`)]),
  ].join('\n')}\n`;
}

/** Columns as wide as what is in them; those of numbers flush right. */
export function table(
  titles: readonly string[],
  rows: readonly (readonly string[])[],
  right: ReadonlySet<number> = new Set(),
): string[] {
  const all = [titles, ...rows];
  const widths = titles.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  return all.map((row) =>
    row
      .map((cell, column) => {
        const width = widths[column] as number;
        return right.has(column) ? cell.padStart(width) : cell.padEnd(width);
      })
      .join('  ')
      .trimEnd(),
  );
}
