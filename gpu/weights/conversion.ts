/** One conversion, measured before and after, in a process of its own. */
import { type ChildProcess, fork } from 'node:child_process';
import { rename, rm, stat } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { plainCard, type WeightsCard } from './card.js';
import type { WeightsAnswer, WeightsTask } from './child.js';
import { hashFile } from './files.js';
import { ftypes, type WeightsFormat } from './formats.js';
import { type PrepareOptions, WeightsError, type WeightsProgress } from './options.js';

/** A conversion may make the perplexity this much worse, no more. */
const worstRatio = 1.05;

export async function convert(
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
    const child: ChildProcess = fork(fileURLToPath(new URL('./child.js', import.meta.url)), [], {
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
