/** What a benchmark found: figures with both sides of a comparison, and whether the target is met. */

export type Target = { readonly atMost: number } | { readonly atLeast: number };

export interface Figure {
  /** Name in the JSON line. */
  readonly key: string;
  readonly name: string;
  /** Of `dynact` and `peer`. */
  readonly unit: string;
  readonly dynact: number;
  /** The other side, measured in the same run. */
  readonly peer?: number;
  /** What the target speaks of: a ratio where there is a peer, else `dynact`. */
  readonly value: number;
  readonly target?: Target;
}

export interface Outcome {
  readonly figures: readonly Figure[];
  /** What a reader must know to judge the figures: what ran, what could not be measured. */
  readonly notes?: readonly string[];
  /** For the JSON line only: repetitions, percentiles. */
  readonly details?: Readonly<Record<string, unknown>>;
}

/** dynact against a peer, as `dynact / peer`. */
export function ratio(key: string, name: string, unit: string, dynact: number, peer: number, target?: Target): Figure {
  return { key, name, unit, dynact, peer, value: dynact / peer, ...(target && { target }) };
}

/** dynact on its own. */
export function figure(key: string, name: string, unit: string, dynact: number, target?: Target): Figure {
  return { key, name, unit, dynact, value: dynact, ...(target && { target }) };
}

/** Undefined: there is no target. A value that is no number meets none. */
export function isMet({ value, target }: Figure): boolean | undefined {
  if (target === undefined) return undefined;
  return 'atMost' in target ? value <= target.atMost : value >= target.atLeast;
}

export function passes(outcome: Outcome): boolean {
  return outcome.figures.every((row) => isMet(row) !== false);
}

const columns = ['figure', 'dynact', 'peer', 'unit', 'value', 'target', ''] as const;

/** The figures as a table, one line each. */
export function table(figures: readonly Figure[]): string {
  const rows = [columns.map(String), ...figures.map(cells)];
  const widths = columns.map((_, column) => Math.max(...rows.map((row) => (row[column] as string).length)));
  const line = (row: readonly string[]) =>
    row
      .map((cell, column) =>
        isNumeric(column) ? cell.padStart(widths[column] as number) : cell.padEnd(widths[column] as number),
      )
      .join('  ')
      .trimEnd();
  return rows.map(line).join('\n');
}

const isNumeric = (column: number) => column === 1 || column === 2 || column === 4;

function cells(row: Figure): string[] {
  const met = isMet(row);
  return [
    row.name,
    digits(row.dynact),
    row.peer === undefined ? '' : digits(row.peer),
    row.unit,
    row.peer === undefined ? digits(row.value) : `${digits(row.value)} ×`,
    targetText(row),
    met === undefined ? '' : met ? 'pass' : 'MISS',
  ];
}

function targetText({ target, peer }: Figure): string {
  if (target === undefined) return '';
  const times = peer === undefined ? '' : ' ×';
  return 'atMost' in target ? `≤ ${target.atMost}${times}` : `≥ ${target.atLeast}${times}`;
}

/** Three significant digits, more for what is large. */
function digits(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString('en');
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(size === 0 ? 0 : size >= 1 ? 2 : 3);
}
