/**
 * What the frontend actor needs from the gateway above it; `gateway/` implements these, `supervisors/` plugs them in.
 * All are synchronous and never throw.
 */
import type { Sampling } from '../../transport/index.js';
import type { RouteWishes } from '../router/choose.js';

export type Api = 'chat' | 'completion';

/** A client's request after template, tokenizer and validation. */
export interface Prepared {
  readonly model: string;
  readonly prompt: Uint32Array;
  readonly n: number;
  /** Seed absent in the request: the frontend draws one at accept, so that every attempt has the same. */
  readonly sampling: Omit<Sampling, 'seed'> & { readonly seed: number | undefined };
  readonly maxTokens: number;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  readonly logprobs: number;
  /** Stop strings; the text ends before the first of them. */
  readonly stop: readonly string[];
  readonly cacheSalt: string;
  /** Of the workers that serve it. */
  readonly wishes?: RouteWishes;
  /** Asks where it would be served, and is answered without a token. */
  readonly dryRun?: boolean;
  /** What the text may say beside the answer: for whoever writes the answer, not for the frontend. Undefined: nothing. */
  readonly answer?: AnswerShape;
}

export interface AnswerShape {
  /** Names of tools that may be called; undefined: calls are text like any other. */
  readonly tools?: readonly string[];
  /** Whether the model reasons first; `open`: its template has opened the reasoning in the prompt. */
  readonly reasoning?: 'may' | 'open';
}

/** What a client says of routing beside its body. */
export interface RoutingHints {
  readonly wishes: RouteWishes;
  readonly cacheSalt?: string;
}

/** Where a request would be served. */
export interface DryRunAnswer {
  readonly decode: string;
  /** Undefined: D computes the prompt. */
  readonly prefill: string | undefined;
  readonly prompt: Uint32Array;
}

export interface RequestError {
  /** HTTP status, 400 … 599. */
  readonly status: number;
  /** OpenAI's `type`, `code` and `param`. */
  readonly type: string;
  readonly code: string | null;
  readonly param: string | null;
  readonly message: string;
  /** Send `retry-after` with it. */
  readonly retryAfterMs?: number;
  /** The same request would fail again, whatever the status says. */
  readonly final?: boolean;
}

export interface Preprocessor {
  /** `body` is the parsed JSON, unchecked. */
  prepare(
    api: Api,
    body: unknown,
    hints?: RoutingHints,
  ): { readonly ok: true; readonly prepared: Prepared } | { readonly ok: false; readonly error: RequestError };
}

/** Turns one choice's tokens into text; holds back bytes until they are whole characters. */
export interface Detokenizer {
  push(token: number): string;
  /** What is held back, as U+FFFD if it is half a character. */
  end(): string;
}

export interface DetokenizerFactory {
  open(model: string): Detokenizer;
}

export interface TokenLogprob {
  readonly token: number;
  readonly logprob: number;
  readonly top: readonly (readonly [number, number])[];
}

export type FinishReason = 'stop' | 'length';

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
}

/**
 * One HTTP response, streaming or not. The frontend calls `begin` once, then any number of `text`, one `finish` per choice, then
 * `end`; or `fail` at any moment instead. After `end` or `fail` nothing more comes.
 */
export interface ClientStream {
  /** The request is valid and admitted. `id` is the request id, shown to the client. */
  begin(id: string, prepared: Prepared): void;
  /** New text of a choice; `tokens` it stands for (usage, logprobs). Text may be '' when bytes are held back. */
  text(choice: number, text: string, tokens: number, logprobs?: readonly TokenLogprob[]): void;
  /** `stop`: the stop string that ended it; undefined: it ended by itself. */
  finish(choice: number, reason: FinishReason, stop?: string): void;
  /** `answer`: of a dry run, which has no choices. */
  end(usage: Usage, answer?: DryRunAnswer): void;
  fail(error: RequestError): void;
}

/** Facts about a finished request, for logs and metrics; the gateway counts them. */
export interface RequestSummary {
  readonly id: string;
  readonly model: string;
  readonly outcome: 'complete' | 'failed' | 'cancelled';
  readonly code: string;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly attempts: number;
  readonly queueMs: number;
  readonly ttftMs: number;
  readonly totalMs: number;
  readonly prefill: string;
  readonly decode: string;
}

/** Everything the frontend can be told by the gateway. */
export type FrontendRequest =
  | {
      readonly type: 'Submit';
      readonly api: Api;
      readonly body: unknown;
      readonly stream: ClientStream;
      readonly ticket: number;
      readonly label: string;
      readonly hints?: RoutingHints;
      readonly trace?: string;
    }
  /** The client closed its connection. `ticket` is the one of Submit: unique per gateway incarnation. */
  | { readonly type: 'ClientGone'; readonly ticket: number };
