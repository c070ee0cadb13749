/** What a matrix that is run in parts has found so far: one line of JSON per cell, under the setting it was run with. */
import { appendFileSync, readFileSync } from 'node:fs';
import type { CellResult, Setting } from './run-cell.js';

export interface CellRecord {
  /** Of earlier runs with the same setting, in their order. */
  readonly before: readonly CellResult[];
  add(result: CellResult): void;
}

/** Without a file nothing is known and nothing is kept. Throws a SyntaxError for a file that is no record. */
export function openRecord(file: string | undefined, { engine, streams, tokens }: Setting): CellRecord {
  if (file === undefined) return { before: [], add() {} };
  const key = `${engine} ${streams} ${tokens}`;
  const lines = contentOf(file)
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as { readonly setting: string; readonly result: CellResult });
  return {
    before: lines.filter(({ setting }) => setting === key).map(({ result }) => result),
    add: (result) => appendFileSync(file, `${JSON.stringify({ setting: key, result })}\n`),
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
