/**
 * From a model's canonical file to the weights that run fastest here. Formats differ by 2 to 4 times in speed (decision 0004), so
 * a source is converted once per machine and kept; a conversion that costs quality is not used, and says so.
 */
import { mkdir, readFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { library, plainCard, type WeightsCard } from './weights/card.js';
import { convert } from './weights/conversion.js';
import { locked, stampedHash, sweep, writeAtomic } from './weights/files.js';
import { formatsFor, ftypes, settled, type WeightsFormat } from './weights/formats.js';
import { type PrepareOptions, WeightsError, type WeightsProgress } from './weights/options.js';

export interface PreparedWeights {
  /** The file to load. */
  readonly path: string;
  /** What `path` is in: `source` if the conversion is not used. */
  readonly format: WeightsFormat;
  readonly sourceHash: string;
  /** SHA-256 of `path`. */
  readonly sha256: string;
  readonly card: WeightsCard;
  /** Nothing had to be computed. */
  readonly cached: boolean;
}

/**
 * Converts `source` to the fastest format, or finds that done. Safe to call from several processes at once. Rejects with
 * WeightsError: the source is missing or unusable, the disk is full, the deadline passed or `signal` fired.
 */
export async function prepareWeights(options: PrepareOptions): Promise<PreparedWeights> {
  const formats = options.format === undefined ? await candidates(options) : [options.format];
  let last: PreparedWeights | undefined;
  for (const format of formats) {
    // The source is measured once, whatever number of formats is tried.
    last = await prepare(options, format, true, undefined, last?.card.perplexity.source ?? undefined);
    if (last.card.used) return last;
  }
  return last ?? prepare(options, 'source', true);
}

async function candidates(options: PrepareOptions): Promise<readonly WeightsFormat[]> {
  try {
    const folder = join(options.cacheDir, 'weights');
    await mkdir(folder, { recursive: true });
    const { sha256 } = await stampedHash(resolve(options.source), folder);
    return settled[sha256] ?? formatsFor();
  } catch {
    // `prepare` meets the same trouble and names it.
    return formatsFor();
  }
}

/**
 * Weights for a worker that joins a running model: the format of the model's card, whatever is fastest here, since KV is only
 * interchangeable between equal weights. Rejects as `prepareWeights` does, and with GPU_WEIGHTS_FOREIGN when `source` is another
 * model or the conversion gave other bytes.
 */
export async function convertTo(
  card: { readonly sourceHash: string; readonly format: string; readonly sha256?: string },
  options: Omit<PrepareOptions, 'format'>,
): Promise<PreparedWeights> {
  const { format } = card;
  if (format !== 'source' && !(format in ftypes)) {
    throw new WeightsError('GPU_WEIGHTS_FOREIGN', `format ${format} is not known here`);
  }
  const weights = await prepare(options, format as WeightsFormat, false, card.sourceHash);
  if (card.sha256 !== undefined && card.sha256 !== weights.sha256) {
    throw new WeightsError('GPU_WEIGHTS_FOREIGN', `${weights.path} differs from the weights that the model runs`);
  }
  return weights;
}

async function prepare(
  options: PrepareOptions,
  format: WeightsFormat,
  gate: boolean,
  expected?: string,
  sourcePerplexity?: number,
): Promise<PreparedWeights> {
  const source = resolve(options.source);
  const report = (phase: WeightsProgress['phase'], fraction: number): void => options.onProgress?.({ phase, fraction });
  const folder = join(options.cacheDir, 'weights');
  try {
    await mkdir(folder, { recursive: true });
    const { sha256: sourceHash, fresh } = await stampedHash(source, folder, (part) => report('hash', part * 0.1));
    if (expected !== undefined && expected !== sourceHash) {
      throw new WeightsError('GPU_WEIGHTS_FOREIGN', `${source} has SHA-256 ${sourceHash}, not ${expected}`);
    }
    if (format === 'source' && !gate) return asSource(source, plainCard(sourceHash), !fresh);
    const name = `${sourceHash.slice(0, 16)}.${format}${gate ? '' : '.joined'}`;
    const target = join(folder, `${sourceHash.slice(0, 16)}.${format}.gguf`);
    const cardPath = join(folder, `${name}.json`);
    const known = (): Promise<PreparedWeights | undefined> =>
      cachedWeights(source, target, cardPath, folder, sourceHash);
    const found = await known();
    if (found !== undefined) return found;
    return await locked(join(folder, `${name}.lock`), options, async () => {
      // Another process may have done it while this one waited.
      const meanwhile = await known();
      if (meanwhile !== undefined) return meanwhile;
      await sweep(folder, `${basename(target)}.`);
      const card = await convert(source, target, sourceHash, format, gate, options, report, sourcePerplexity);
      await writeAtomic(cardPath, `${JSON.stringify(card, null, 2)}\n`);
      if (card.used && format !== 'source') await stampedHash(target, folder);
      report('measure', 1);
      return card.used && format !== 'source' ? asResult(target, card, false) : asSource(source, card, false);
    });
  } catch (error) {
    if (error instanceof WeightsError) throw error;
    const code = (error as NodeJS.ErrnoException).code;
    const missing = (code === 'ENOENT' || code === 'EISDIR') && (error as NodeJS.ErrnoException).path === source;
    throw new WeightsError(missing ? 'GPU_WEIGHTS_MISSING' : 'GPU_WEIGHTS_FAILED', (error as Error).message, error);
  }
}

const asResult = (path: string, card: WeightsCard, cached: boolean): PreparedWeights => ({
  path,
  format: card.format,
  sourceHash: card.sourceHash,
  sha256: card.sha256,
  card,
  cached,
});

const asSource = (path: string, card: WeightsCard, cached: boolean): PreparedWeights => ({
  path,
  format: 'source',
  sourceHash: card.sourceHash,
  sha256: card.sourceHash,
  card,
  cached,
});

async function cachedWeights(
  source: string,
  target: string,
  cardPath: string,
  folder: string,
  sourceHash: string,
): Promise<PreparedWeights | undefined> {
  let card: WeightsCard;
  try {
    card = JSON.parse(await readFile(cardPath, 'utf8')) as WeightsCard;
  } catch {
    return undefined;
  }
  if (card.version !== 1 || card.sourceHash !== sourceHash || card.library !== library()) return undefined;
  if (!card.used || card.format === 'source') return asSource(source, card, true);
  try {
    const { sha256 } = await stampedHash(target, folder);
    return sha256 === card.sha256 ? asResult(target, card, true) : undefined;
  } catch {
    return undefined;
  }
}
