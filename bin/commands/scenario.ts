import { mkdtempSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { quietNode, readScenario, reportOf, runScenario, scenarioNames, type Verdict } from '../../scenarios/index.js';
import { table } from './trace.js';
import { UsageError } from './usage.js';

export interface ScenarioOptions {
  readonly seed?: string;
  readonly report?: string;
  readonly node?: string;
  readonly tapes?: string;
  readonly log?: string;
  readonly json?: true;
}

/** `dynact scenario list`. */
export async function listScenarios({ json }: { readonly json?: true }): Promise<void> {
  const all = await Promise.all(scenarioNames().map(readScenario));
  const rows = all.map(({ name, title, after }) => ({ name, title, after }));
  if (json) process.stdout.write(`${JSON.stringify(rows)}\n`);
  else
    process.stdout.write(
      `${table(
        ['name', 'story', 'met elsewhere as'],
        rows.map(({ name, title, after }) => [name, title, after]),
      ).join('\n')}\n`,
    );
}

/** `dynact scenario run`: exit code 1 unless all that could be run have passed, and at least one could. */
export async function runScenarios(names: readonly string[], options: ScenarioOptions): Promise<void> {
  const seed = Number(options.seed ?? 1);
  if (!Number.isSafeInteger(seed) || seed < 0) throw new UsageError(`--seed ${options.seed} is no whole number`);
  const wanted = names.flatMap((name) => (name === 'all' ? scenarioNames() : [name]));
  // A file that is none is told before the first node is started.
  const plots = await Promise.all(wanted.map(readScenario));
  const tapes = options.tapes ?? mkdtempSync(join(tmpdir(), 'dynact-tapes-'));
  const say = (line: string) => process.stderr.write(`${line}\n`);
  const verdicts: Verdict[] = [];
  const quiet = quietNode();
  try {
    for (const plot of plots) {
      say(`${plot.name}: ${plot.title}`);
      const verdict = await runScenario(plot, {
        seed,
        node: options.node,
        tapes,
        log: options.log,
        progress: say,
        quiet: quiet.stage,
      });
      say(`${plot.name}: ${verdict.verdict}${verdict.why === '' ? '' : `, ${verdict.why}`}; tape ${verdict.tape}`);
      verdicts.push(verdict);
      if (options.report !== undefined) await writeFile(options.report, reportOf(verdicts, new Date().toISOString()));
    }
  } finally {
    await quiet.close();
  }
  const rows = verdicts.map(({ name, verdict, ms, why }) => [name, verdict, (ms / 1000).toFixed(1), why]);
  if (options.json) process.stdout.write(`${JSON.stringify(verdicts)}\n`);
  else process.stdout.write(`${table(['scenario', 'verdict', 's', ''], rows, new Set([2])).join('\n')}\n`);
  const passed = verdicts.some(({ verdict }) => verdict === 'passed');
  if (!passed || verdicts.some(({ verdict }) => verdict === 'failed')) process.exitCode = 1;
}
