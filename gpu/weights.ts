/**
 * From a model's canonical file to the weights that run fastest here. Formats differ by 2 to 4 times in speed (decision 0004), so
 * a source is converted once per machine and kept; a conversion that costs quality is not used, and says so.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, readFileSync } from 'node:fs';
import { mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { packageRoot } from './addon.js';
import { gpuErrors, type WeightsErrorCode } from './errors.js';
import type { WeightsAnswer, WeightsTask } from './weights-child.js';

/** `source` runs the canonical file as it is. */
export type WeightsFormat = 'q4_0-pure' | 'iq4_nl-pure' | 'q8_0-pure' | 'source';

/** Values of llama.h's llama_ftype. */
const ftypes: Readonly<Record<Exclude<WeightsFormat, 'source'>, number>> = {
  'q4_0-pure': 2,
  'iq4_nl-pure': 25,
  'q8_0-pure': 7,
};

/** Formats by processor, fastest first; the first row that fits counts, and of it the first format that keeps the quality. Decision 0004. */
const fastest: readonly {
  readonly arch: string;
  readonly flag?: string;
  readonly formats: readonly WeightsFormat[];
}[] = [
  { arch: 'x64', flag: 'avx512f', formats: ['iq4_nl-pure', 'q8_0-pure'] },
  { arch: 'x64', formats: ['q4_0-pure', 'q8_0-pure'] },
  { arch: 'arm64', formats: ['q4_0-pure', 'q8_0-pure'] },
];

/**
 * Sources whose 4-bit formats have failed the gate on every machine they were tried on (decision 0004): trying them again at each first
 * start costs minutes and teaches nothing. The format that is left is still measured.
 */
const settled: Readonly<Record<string, readonly WeightsFormat[]>> = {
  // SmolLM2-135M-Instruct, Q4_1
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53: ['q8_0-pure'],
};

/** A conversion may make the perplexity this much worse, no more. */
const worstRatio = 1.05;

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

export interface WeightsProgress {
  readonly phase: 'hash' | 'measure' | 'convert';
  /** 0 … 1 over all phases. */
  readonly fraction: number;
}

export interface PrepareOptions {
  /** Canonical GGUF file. */
  readonly source: string;
  /** Converted weights go into `weights/` below it. */
  readonly cacheDir: string;
  /** Tries this one only. @default `formatsFor()`, in order, until one keeps the quality */
  readonly format?: WeightsFormat;
  readonly onProgress?: (progress: WeightsProgress) => void;
  /** Stops the conversion; what was begun is removed. */
  readonly signal?: AbortSignal;
  /** More than one collapses on shared cores (measured: 582 ms a step against 34). @default 1 */
  readonly threads?: number;
  /** For the conversion, or for another process to finish one. @default 600000 */
  readonly deadlineMs?: number;
}

/** Matched by `code`; every code is in `gpuErrors`. */
export class WeightsError extends Error {
  constructor(
    readonly code: WeightsErrorCode,
    detail: string,
    cause?: unknown,
  ) {
    const entry = gpuErrors.find((known) => known.code === code);
    super(`${entry?.message ?? code}: ${detail}`, cause === undefined ? undefined : { cause });
    this.name = 'WeightsError';
  }
}

/** Formats worth trying on a processor, fastest first; its flags are those of /proc/cpuinfo. */
export function formatsFor(
  arch: string = process.arch,
  flags: ReadonlySet<string> = cpuFlags(),
): readonly WeightsFormat[] {
  const row = fastest.find((entry) => entry.arch === arch && (entry.flag === undefined || flags.has(entry.flag)));
  return row?.formats ?? ['source'];
}

function cpuFlags(): ReadonlySet<string> {
  try {
    const line = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'));
    return new Set(line?.[1]?.trim().split(' '));
  } catch {
    return new Set();
  }
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

const plainCard = (sourceHash: string): WeightsCard => ({
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

function library(): string {
  const name = `@node-llama-cpp/linux-${process.arch}`;
  const file = join(packageRoot(), 'node_modules', name, 'package.json');
  return `${name}@${(JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version}`;
}

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

// ---- conversion

async function convert(
  source: string,
  target: string,
  sourceHash: string,
  format: WeightsFormat,
  gate: boolean,
  options: PrepareOptions,
  report: (phase: WeightsProgress['phase'], fraction: number) => void,
  sourcePerplexity: number | undefined,
): Promise<WeightsCard> {
  const part = `${target}.${process.pid}.part`;
  const plain = plainCard(sourceHash);
  try {
    const answers = await inChild(
      {
        source,
        target: format === 'source' ? undefined : part,
        ftype: format === 'source' ? 0 : ftypes[format],
        threads: options.threads ?? 1,
        measureSource: gate && sourcePerplexity === undefined,
        measureTarget: gate,
      },
      options,
      report,
    );
    const perplexity = { source: answers.source ?? sourcePerplexity ?? null, result: answers.target ?? null };
    if (format === 'source') return { ...plain, perplexity };
    const reason = answers.failure ?? tooMuchWorse(perplexity.source, perplexity.result);
    if (reason !== '') {
      if (!gate) throw new WeightsError('GPU_WEIGHTS_FAILED', reason);
      return { ...plain, format, used: false, reason, perplexity };
    }
    const sha256 = await hashFile(part);
    const { size } = await stat(part);
    await rename(part, target);
    return { ...plain, format, sha256, bytes: size, perplexity };
  } finally {
    await rm(part, { force: true });
  }
}

/** '' if `result` is good enough. Not measured counts as good: then the caller decided. */
function tooMuchWorse(source: number | null, result: number | null): string {
  if (source === null || result === null) return '';
  const ratio = result / source;
  if (ratio <= worstRatio) return '';
  return `perplexity ${result.toFixed(3)} against ${source.toFixed(3)} of the source`;
}

interface Answers {
  source?: number;
  target?: number;
  /** The source is fine, the conversion is not. */
  failure?: string;
}

function inChild(
  task: WeightsTask,
  options: PrepareOptions,
  report: (phase: WeightsProgress['phase'], fraction: number) => void,
): Promise<Answers> {
  return new Promise((resolve, reject) => {
    const answers: Answers = {};
    let failed: WeightsError | undefined;
    let converted = false;
    const child: ChildProcess = fork(fileURLToPath(new URL('./weights-child.js', import.meta.url)), [], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      execArgv: [],
    });
    const give = (error: WeightsError): void => {
      failed ??= error;
      child.kill('SIGKILL');
    };
    const aborted = (): void => give(new WeightsError('GPU_WEIGHTS_FAILED', 'stopped', options.signal?.reason));
    const deadline = setTimeout(() => {
      give(new WeightsError('GPU_WEIGHTS_FAILED', 'the deadline has passed'));
    }, options.deadlineMs ?? 600_000);
    // The library writes tensor by tensor: the size of the file is the progress.
    const poll = setInterval(() => {
      if (task.target === undefined || converted) return;
      void Promise.all([stat(task.target), stat(task.source)]).then(
        ([to, from]) => report('convert', 0.4 + 0.2 * Math.min(1, to.size / from.size)),
        () => {},
      );
    }, 200);
    options.signal?.addEventListener('abort', aborted, { once: true });
    if (options.signal?.aborted === true) aborted();
    child.on('message', (answer: WeightsAnswer) => {
      if (answer.type === 'measured') {
        answers[answer.of] = answer.perplexity;
        report('measure', answer.of === 'source' ? 0.4 : 1);
      } else if (answer.type === 'converted') {
        converted = true;
        report('convert', 0.6);
      } else if (answer.of === 'source') {
        failed ??= new WeightsError('GPU_WEIGHTS_UNUSABLE', answer.message);
      } else if (answer.of === 'library') {
        failed ??= new WeightsError('GPU_WEIGHTS_FAILED', answer.message);
      } else {
        answers.failure = answer.message;
      }
    });
    child.on('error', (error) => give(new WeightsError('GPU_WEIGHTS_FAILED', error.message, error)));
    let ended: (() => void) | undefined;
    let open = true;
    // Its last message may arrive after its exit: the channel must be closed too.
    child.on('disconnect', () => {
      open = false;
      ended?.();
    });
    child.on('exit', (code, signal) => {
      ended = () => finish(code, signal);
      if (!open) ended();
    });
    function finish(code: number | null, signal: string | null): void {
      clearTimeout(deadline);
      clearInterval(poll);
      options.signal?.removeEventListener('abort', aborted);
      const complete =
        task.target === undefined ? answers.source !== undefined : converted || answers.failure !== undefined;
      if (failed !== undefined) reject(failed);
      else if (complete && (code === 0 || answers.failure !== undefined)) resolve(answers);
      else if (task.measureSource && answers.source === undefined) {
        reject(new WeightsError('GPU_WEIGHTS_UNUSABLE', `the library ended with ${signal ?? code} on it`));
      } else {
        answers.failure = `the conversion process ended with ${signal ?? code}`;
        resolve(answers);
      }
    }
    child.send(task, (error) => {
      if (error !== null) give(new WeightsError('GPU_WEIGHTS_FAILED', error.message, error));
    });
  });
}

// ---- files

interface Stamp {
  readonly path: string;
  readonly size: number;
  readonly mtimeMs: number;
  readonly ino: number;
  readonly sha256: string;
}

/** SHA-256 of a file, read again only if size, time or inode changed since it was last hashed. */
async function stampedHash(
  path: string,
  folder: string,
  progress: (fraction: number) => void = () => {},
): Promise<{ readonly sha256: string; readonly fresh: boolean }> {
  const { size, mtimeMs, ino } = await stat(path);
  const name = createHash('sha256').update(path).digest('hex').slice(0, 16);
  const file = join(folder, `${name}.stamp`);
  try {
    const stamp = JSON.parse(await readFile(file, 'utf8')) as Stamp;
    if (stamp.path === path && stamp.size === size && stamp.mtimeMs === mtimeMs && stamp.ino === ino) {
      return { sha256: stamp.sha256, fresh: false };
    }
  } catch {
    // No stamp, or half of one: the hash is computed.
  }
  const sha256 = await hashFile(path, (bytes) => progress(bytes / size));
  await writeAtomic(file, JSON.stringify({ path, size, mtimeMs, ino, sha256 } satisfies Stamp));
  return { sha256, fresh: true };
}

async function hashFile(path: string, progress: (bytes: number) => void = () => {}): Promise<string> {
  const hash = createHash('sha256');
  let bytes = 0;
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), async (chunks: AsyncIterable<Buffer>) => {
    for await (const chunk of chunks) {
      hash.update(chunk);
      bytes += chunk.length;
      progress(bytes);
    }
  });
  return hash.digest('hex');
}

async function writeAtomic(path: string, text: string): Promise<void> {
  const part = `${path}.${process.pid}.part`;
  await writeFile(part, text);
  await rename(part, path);
}

/** Removes what conversions left that were killed half-way. */
async function sweep(folder: string, prefix: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const pid = name.startsWith(prefix) ? /\.(\d+)\.part$/.exec(name)?.[1] : undefined;
    if (pid !== undefined && !alive(Number(pid))) await rm(join(folder, name), { force: true });
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

/** Runs `work` while holding a lock file. A lock whose process is dead is taken over. */
async function locked<T>(path: string, options: PrepareOptions, work: () => Promise<T>): Promise<T> {
  const until = performance.now() + (options.deadlineMs ?? 600_000);
  for (;;) {
    try {
      const handle = await open(path, 'wx');
      await handle.writeFile(String(process.pid));
      await handle.close();
      break;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    if (await abandoned(path)) await rm(path, { force: true });
    else if (options.signal?.aborted === true) throw new WeightsError('GPU_WEIGHTS_FAILED', 'stopped');
    else if (performance.now() > until) throw new WeightsError('GPU_WEIGHTS_BUSY', path);
    else await new Promise((wake) => setTimeout(wake, 200));
  }
  try {
    return await work();
  } finally {
    await rm(path, { force: true });
  }
}

async function abandoned(path: string): Promise<boolean> {
  try {
    const [text, { mtimeMs }] = await Promise.all([readFile(path, 'utf8'), stat(path)]);
    // Empty: created a moment ago and not written yet, or left by a process that died in between.
    return text === '' ? Date.now() - mtimeMs > 5000 : !alive(Number(text));
  } catch {
    return false;
  }
}
