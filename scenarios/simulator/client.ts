/** The other side of the gateways: sends what the schedule says, and judges each token the moment it arrives. */
import type { ClientStream, Detokenizer, FrontendRequest, Prepared, RequestError } from '../../actors/index.js';
import { mockAnswer } from '../../gpu/index.js';
import type { PlannedRequest } from './schedule.js';

/** What a client saw. */
export interface Seen {
  readonly planned: PlannedRequest;
  readonly index: number;
  id: string;
  /** Tokens of each choice so far. */
  readonly tokens: number[];
  readonly finished: boolean[];
  /** `end` and `fail` calls: exactly one (promise P1). */
  ends: number;
  outcome: 'waiting' | 'complete' | 'failed' | 'left' | 'cut off' | 'refused';
  error: RequestError | undefined;
  sentAt: number;
  endedAt: number;
  /** Longest silence between two of its tokens, and before the first. */
  longestPauseMs: number;
  heardAt: number;
}

/** Each token is one UTF-16 unit: what a text says is checked, not how it reads. */
export const detokenizer = (): Detokenizer => ({ push: (token) => String.fromCharCode(token), end: () => '' });

const wordAt = (seed: number, index: number) =>
  512 + ((Math.imul(seed * 7919 + index + 1, 2_654_435_761) >>> 0) % 49_000);

/** Deterministic: the shared tokens of its group, then tokens of its own. */
export function promptOf({ group, sharedTokens, ownTokens }: PlannedRequest, index: number): Uint32Array {
  const prompt = new Uint32Array(sharedTokens + ownTokens);
  for (let at = 0; at < prompt.length; at++)
    prompt[at] = at < sharedTokens ? wordAt(group + 1, at) : wordAt(1_000 + index, at);
  return prompt;
}

function prepared(planned: PlannedRequest, index: number): Prepared {
  return {
    model: 'mock',
    prompt: promptOf(planned, index),
    n: planned.n,
    sampling: {
      temperature: 1,
      topK: 0,
      topP: 1,
      minP: 0,
      frequencyPenalty: 0,
      presencePenalty: 0,
      repetitionPenalty: 1,
      logitBias: [],
      seed: planned.seed,
    },
    maxTokens: planned.maxTokens,
    minTokens: 0,
    ignoreEos: false,
    logprobs: 0,
    stop: [],
    cacheSalt: '',
    wishes: {
      ...(planned.session !== undefined && { session: `conversation-${planned.session}` }),
      ...(planned.class !== undefined && { class: planned.class }),
      ...(planned.priority !== undefined && { priority: planned.priority }),
      ...(planned.strictPriority !== undefined && { strictPriority: planned.strictPriority }),
    },
  };
}

export interface ClientWatch {
  now(): number;
  /** Something that must never be. */
  violated(what: string): void;
  /** It is over, in whatever way. */
  ended(seen: Seen): void;
}

export function ask(
  planned: PlannedRequest,
  index: number,
  ticket: number,
  watch: ClientWatch,
): { readonly seen: Seen; readonly submit: FrontendRequest & { type: 'Submit' } } {
  const body = prepared(planned, index);
  const expected = Array.from({ length: planned.n }, (_, choice) =>
    mockAnswer(body.prompt, {
      blockTokens: 64,
      kvBytesPerToken: 4,
      seed: planned.seed,
      choice,
    }),
  );
  const now = watch.now();
  const seen: Seen = {
    planned,
    index,
    id: '',
    tokens: Array(planned.n).fill(0),
    finished: Array(planned.n).fill(false),
    ends: 0,
    outcome: 'waiting',
    error: undefined,
    sentAt: now,
    endedAt: 0,
    longestPauseMs: 0,
    heardAt: now,
  };
  const name = `request ${index}`;
  const over = (outcome: Seen['outcome']) => {
    if (++seen.ends > 1) watch.violated(`${name} ended twice: ${seen.outcome}, then ${outcome}`);
    if (seen.outcome !== 'waiting') return;
    seen.outcome = outcome;
    seen.endedAt = watch.now();
    watch.ended(seen);
  };
  const stream: ClientStream = {
    begin(id) {
      if (seen.id !== '') watch.violated(`${name} began twice`);
      seen.id = id;
    },
    text(choice, text) {
      if (seen.ends > 0) watch.violated(`${name} got text after its end`);
      seen.longestPauseMs = Math.max(seen.longestPauseMs, watch.now() - seen.heardAt);
      seen.heardAt = watch.now();
      for (let unit = 0; unit < text.length; unit++) {
        const token = text.charCodeAt(unit);
        const at = seen.tokens[choice] as number;
        const want = at < planned.maxTokens ? expected[choice]?.(at) : undefined;
        if (token !== want) {
          watch.violated(`${name} choice ${choice} token ${at} is ${token}, not ${want ?? 'anything'}`);
        }
        seen.tokens[choice] = at + 1;
      }
    },
    finish(choice) {
      if (seen.finished[choice]) watch.violated(`${name} choice ${choice} finished twice`);
      seen.finished[choice] = true;
    },
    end() {
      for (const [choice, count] of seen.tokens.entries()) {
        if (count !== planned.maxTokens || !seen.finished[choice])
          watch.violated(`${name} choice ${choice} ended after ${count} of ${planned.maxTokens} tokens`);
      }
      over('complete');
    },
    fail(error) {
      seen.error = error;
      over('failed');
    },
  };
  return { seen, submit: { type: 'Submit', api: 'completion', body, stream, ticket, label: name } };
}
