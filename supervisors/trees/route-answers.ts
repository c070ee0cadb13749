/** Answers of a gateway's router to `dynact route`. */
import {
  type DryRunOutcome,
  explained,
  type Kernel,
  meaningOf,
  type Preprocessor,
  type Ref,
  type RouteRecord,
  type RouterMessage,
} from '../../actors/index.js';
import { sequenceHashes } from '../../gpu/index.js';
import type { RouteAnswer, RouteQuestion } from '../route-question.js';

const askMs = 2_000;

export interface RouteAnswersOptions {
  readonly kernel: Kernel;
  readonly router: Ref<RouterMessage>;
  readonly preprocessor: Preprocessor;
  readonly gateway: string;
  readonly model: string;
  readonly blockTokens: number;
}

/** Rejects with ACT_TIMEOUT when the router does not answer in time. */
export function routeAnswers(options: RouteAnswersOptions): (question: RouteQuestion) => Promise<RouteAnswer> {
  const { kernel, router, preprocessor, gateway, model, blockTokens } = options;

  async function dryRun(content: string): Promise<RouteAnswer> {
    const body = { model, messages: [{ role: 'user', content }] };
    const outcome = preprocessor.prepare('chat', body);
    if (!outcome.ok) return { gateway, error: outcome.error.message };
    const { prompt, n, cacheSalt } = outcome.prepared;
    const request = {
      num: 0,
      attempt: 1,
      id: '',
      model,
      choices: n,
      exclude: new Set<string>(),
      promptTokens: prompt.length,
      hashes: sequenceHashes(prompt, blockTokens, cacheSalt),
      queueBy: Number.POSITIVE_INFINITY,
    };
    const { choice, decisions, disagg, refusal } = await kernel.ask<RouterMessage, DryRunOutcome>(
      router,
      (replyTo) => ({ type: 'DryRun', request, replyTo }),
      askMs,
    );
    if (refusal !== undefined) return { gateway, error: meaningOf(refusal).text };
    const { decode, prefill, expectedTokens = 0 } = choice ?? {};
    const placed = decode === undefined ? undefined : { decode, ...(prefill === undefined ? {} : { prefill }) };
    const why = disagg === undefined ? {} : { disagg };
    const record = { id: '', attempt: 1, at: Date.now(), decisions, placed, expectedTokens, ...why };
    return { gateway, records: [withReasons(record)] };
  }

  return async (question) => {
    if (question.type === 'dry-run') return dryRun(question.prompt);
    const { records } = await kernel.ask<RouterMessage, { readonly records: readonly RouteRecord[] }>(
      router,
      (replyTo) => ({ type: 'Explain', id: question.id, replyTo }),
      askMs,
    );
    return { gateway, records: records.map(withReasons) };
  };
}

const withReasons = (record: RouteRecord): RouteRecord => ({ ...record, decisions: record.decisions.map(explained) });
