/** What a matrix that is run in parts has found so far, one line of JSON for each thing, under the setting it was found with. */
import { appendFileSync, readFileSync } from 'node:fs';
import type { Phase } from './cells.js';
import type { Baseline, CellResult, Setting } from './run-cell.js';

type Finding = { readonly result: CellResult } | { readonly phase: Phase; readonly baseline: Baseline };

export interface CellRecord {
  /** Of earlier runs with the same setting, in their order. */
  readonly results: readonly CellResult[];
  readonly baselines: ReadonlyMap<Phase, Baseline>;
  add(finding: Finding): void;
}

/** Without a file nothing is known and nothing is kept. Throws a SyntaxError for a file that is no record. */
export function openRecord(file: string | undefined, { engine, streams, tokens }: Setting): CellRecord {
  const setting = `${engine} ${streams} ${tokens}`;
  const lines = (file === undefined ? '' : contentOf(file)).split('\n').filter((line) => line !== '');
  const found = lines
    .map((line) => JSON.parse(line) as Finding & { readonly setting: string })
    .filter((line) => line.setting === setting);
  return {
    results: found.flatMap((line) => ('result' in line ? [line.result] : [])),
    baselines: new Map(found.flatMap((line) => ('phase' in line ? [[line.phase, line.baseline] as const] : []))),
    add(finding) {
      if (file !== undefined) appendFileSync(file, `${JSON.stringify({ setting, ...finding })}\n`);
    },
  };
}

function contentOf(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}
