/** What is known of converted weights, kept beside them as JSON. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../addon.js';
import type { WeightsFormat } from './formats.js';

/** The card beside converted weights: what they are, and how good. */
export interface WeightsCard {
  readonly version: 1;
  /** SHA-256 of the canonical source file, lower-case hex. */
  readonly sourceHash: string;
  /** The format that was tried. */
  readonly format: WeightsFormat;
  /** False: the result was worse than allowed or could not be made; the source runs instead. */
  readonly used: boolean;
  /** Why it is not used; '' if it is. */
  readonly reason: string;
  /** SHA-256 and size of the converted file; '' and 0 if there is none. */
  readonly sha256: string;
  readonly bytes: number;
  /** Over the fixed text; null where it was not measured. */
  readonly perplexity: { readonly source: number | null; readonly result: number | null };
  /** Package that the library came from. */
  readonly library: string;
}

export const plainCard = (sourceHash: string): WeightsCard => ({
  version: 1,
  sourceHash,
  format: 'source',
  used: true,
  reason: '',
  sha256: '',
  bytes: 0,
  perplexity: { source: null, result: null },
  library: library(),
});

/** The package whose library converts and runs: another version makes other weights. */
export function library(): string {
  const name = `@node-llama-cpp/linux-${process.arch}`;
  const file = join(packageRoot(), 'node_modules', name, 'package.json');
  return `${name}@${(JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version}`;
}
