/** What the runner asks of a benchmark. */
import type { ParseArgsConfig } from 'node:util';
import type { Outcome } from './outcome.js';

export type Options = Readonly<Record<string, unknown>>;

export interface Bench {
  /** One line. */
  readonly summary: string;
  /** One line per option. */
  readonly help: string;
  readonly options: NonNullable<ParseArgsConfig['options']>;
  /** `progress` says what is being measured, for whoever waits. */
  run(options: Options, progress: (text: string) => void): Promise<Outcome>;
}
