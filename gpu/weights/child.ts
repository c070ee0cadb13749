/**
 * The process in which weights are measured and converted: the library may abort on a damaged file, and that must not take
 * anybody else down. Answers over IPC, one message per finished part, and exits.
 */
import { loadNative } from '../native.js';
import { perplexityText } from '../perplexity-text.js';

export interface WeightsTask {
  readonly source: string;
  /** Undefined: measure the source only. */
  readonly target: string | undefined;
  /** llama.h's llama_ftype. */
  readonly ftype: number;
  readonly threads: number;
  readonly measureSource: boolean;
  /** False when the format is given and its quality is not in question. */
  readonly measureTarget: boolean;
}

export type WeightsAnswer =
  | { readonly type: 'measured'; readonly of: 'source' | 'target'; readonly perplexity: number }
  | { readonly type: 'converted' }
  | { readonly type: 'failed'; readonly of: 'library' | 'source' | 'conversion' | 'target'; readonly message: string };

interface Measuring {
  perplexity(path: string, utf8: Uint8Array, threads: number): [perplexity: number, tokens: number];
}

const say = (answer: WeightsAnswer): Promise<void> =>
  new Promise((resolve) => {
    // A parent that is gone needs no answer: the file it wanted is a temporary one, and the next run removes it.
    if (process.send === undefined) resolve();
    else process.send(answer, () => resolve());
  });

async function work(task: WeightsTask): Promise<void> {
  let of: Extract<WeightsAnswer, { type: 'failed' }>['of'] = 'library';
  try {
    const { native } = loadNative();
    const text = Buffer.from(perplexityText);
    const measure = async (which: 'source' | 'target', path: string): Promise<void> => {
      of = which;
      const [perplexity] = (native as unknown as Measuring).perplexity(path, text, task.threads);
      await say({ type: 'measured', of: which, perplexity });
    };
    if (task.measureSource) await measure('source', task.source);
    if (task.target === undefined) return;
    of = 'conversion';
    await native.quantize(task.source, task.target, task.ftype, task.threads);
    await say({ type: 'converted' });
    if (task.measureTarget) await measure('target', task.target);
  } catch (error) {
    await say({ type: 'failed', of, message: error instanceof Error ? error.message : String(error) });
  }
}

process.once('message', (task) => {
  void work(task as WeightsTask).finally(() => process.disconnect?.());
});
