import { askRoute, type RouteAnswer, readRouteTape } from '../../supervisors/index.js';
import type { RouteOptions } from './main.js';
import { configurationOf } from './settings.js';
import { UsageError } from './usage.js';

type Answers = readonly RouteAnswer[];
type Records = Extract<RouteAnswer, { readonly records: unknown }>['records'];
type RouteRecord = Records[number];
type Decision = RouteRecord['decisions'][number];

/** `dynact route`: why a request went where it went, or where one would go. */
export async function route(options: RouteOptions): Promise<void> {
  const { explain, prompt } = options;
  if ((explain === undefined) === (prompt === undefined)) throw new UsageError('use either --explain or --prompt');
  const question =
    explain === undefined
      ? ({ type: 'dry-run', prompt: prompt ?? '' } as const)
      : // As clients see it, too.
        ({ type: 'explain', id: explain.replace(/^(chatcmpl|cmpl)-/, '') } as const);
  const { config } = await configurationOf({ stateDir: options.stateDir });
  const told = await askRoute(config.node.stateDir, question);
  const answers =
    question.type === 'explain' && !told.some(tells) ? [...told, ...(await taped(config, question.id))] : told;
  if (options.json) {
    process.stdout.write(`${JSON.stringify(answers)}\n`);
    return;
  }
  for (const answer of answers) {
    if ('error' in answer) process.stderr.write(`${answer.gateway}: ${answer.error}\n`);
    else {
      const { gateway, records, taped } = answer;
      for (const record of records) {
        process.stdout.write(drawRecord(taped === undefined ? gateway : `${gateway}, from the tape`, record));
      }
      if (taped !== undefined && taped.unlike > 0) {
        process.stderr.write(`${gateway}: decided by other code: ${taped.unlike} would come out otherwise now\n`);
      }
    }
  }
  if (answers.some(tells)) return;
  if (explain !== undefined)
    process.stderr.write('no gateway knows this request, or not any more, nor does the tape\n');
  process.exitCode = 1;
}

const tells = (answer: RouteAnswer) => 'records' in answer && answer.records.length > 0;

/** What a gateway has forgotten, or took with it, is on the tape for a while. */
async function taped(config: Parameters<typeof readRouteTape>[0], id: string): Promise<Answers> {
  try {
    return await readRouteTape(config, id);
  } catch (error) {
    process.stderr.write(`the tape cannot be read: ${error instanceof Error ? error.message : String(error)}\n`);
    return [];
  }
}

/** One attempt of a request: the choice in a line, then a table for each decision. */
export function drawRecord(gateway: string, record: RouteRecord): string {
  const { id, attempt, at, decisions, disagg, placed, session, expectedTokens, cachedTokens } = record;
  const where =
    placed === undefined
      ? 'waits: nobody can take it'
      : placed.prefill === undefined
        ? placed.decode
        : `${placed.prefill}, then ${placed.decode}`;
  const name = id === '' ? 'would go to' : `${id} attempt ${attempt} at ${new Date(at).toISOString()}:`;
  const tokens = decisions[0]?.promptTokens ?? 0;
  const had = cachedTokens === undefined ? '' : `, ${cachedTokens} were`;
  const head = `${name} ${where}\n  ${gateway}; ${expectedTokens} of ${tokens} prompt tokens expected to be cached${had}\n`;
  const kept = session === undefined ? '' : `  ${sessions[session]}\n`;
  return head + kept + (disagg === undefined ? '' : drawDisagg(disagg)) + decisions.map(drawDecision).join('');
}

const sessions: Readonly<Record<NonNullable<RouteRecord['session']>, string>> = {
  new: 'the first of its session, or the first again after a while',
  kept: 'of a session that was served there before',
  moved: 'of a session that was served elsewhere before, where there was no room (compared first)',
};

/** Why a prefill worker computes the prompt, or the decode worker itself. */
const disaggReasons: Readonly<Record<NonNullable<RouteRecord['disagg']>['reason'], string>> = {
  policy: 'as all prompts',
  long: 'it is long',
  'prefill-free': 'one has time',
  'long-and-prefill-free': 'it is long and one has time',
  'decode-busy': 'the decode worker is too full',
  short: 'it is short',
  'prefill-busy': 'prefill workers are busy',
  'decode-first': 'or leaves it to a prefill worker, as it sees fit',
};

function drawDisagg({ remote, uncachedTokens, reason }: NonNullable<RouteRecord['disagg']>): string {
  const who = remote ? 'a prefill worker computes the prompt' : 'the decode worker computes the prompt itself';
  return `  ${who}: ${disaggReasons[reason]} (${uncachedTokens} tokens it does not have)\n`;
}

const titles = ['', 'worker', 'cached', 'requests', 'to prefill', 'prefill', 'credit', 'decode', 'cost', 'chance'];
const digits = (value: number | undefined) => (value === undefined ? '' : String(Math.round(value * 100) / 100));

/** Loads and costs are in blocks, but for requests and the backlog in tokens. */
function drawDecision({ mode, phase, blockTokens, candidates, excluded, chosen }: Decision): string {
  const rows = candidates.map(({ incarnation, overlap, load, capacity, terms, probability }, index) => [
    index === chosen ? '→' : '',
    incarnation,
    String(overlap.device + overlap.host + overlap.disk),
    `${load.requests}/${capacity}`,
    digits(load.prefillTokens),
    digits(terms?.prefillBlocks),
    digits(terms?.credit),
    digits(terms?.decodeBlocks),
    digits(terms?.cost),
    digits(probability),
  ]);
  const others = excluded.map(({ incarnation, reason }) => ['', incarnation, reason]);
  const widths = [titles, ...rows].reduce<number[]>(
    (sizes, row) => row.map((cell, column) => Math.max(cell.length, sizes[column] ?? 0)),
    [],
  );
  widths[1] = Math.max(widths[1] ?? 0, ...others.map(([, name = '']) => name.length));
  const line = (row: readonly string[]) =>
    `    ${row.map((cell, column) => (column < 2 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0))).join('  ')}`.trimEnd();
  // A reason is longer than a number, and nothing comes after it.
  const out = ([mark = '', name = '', reason = '']: readonly string[]) =>
    `    ${mark.padEnd(widths[0] ?? 0)}  ${name.padEnd(widths[1] ?? 0)}  ${reason}`;
  const work = phase === 'decode' ? 'decodes' : 'computes the prompt';
  const lines = [
    `  who ${work}, by ${mode}, in blocks of ${blockTokens} tokens`,
    line(titles),
    ...rows.map(line),
    ...others.map(out),
  ];
  return `${lines.join('\n')}\n`;
}
