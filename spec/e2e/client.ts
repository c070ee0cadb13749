/** A client that sees an answer as it comes: what arrived, in which state it ended, and nothing thrown. */
import { patienceMs } from './node-kit.js';

export interface Answer {
  /** 0 = no response at all. */
  readonly status: number;
  readonly text: string;
  readonly finish: string | null;
  /** Code of OpenAI's error body or event; `cut` when the connection broke. */
  readonly error: string | null;
  readonly retryAfter: string | null;
  readonly usage: unknown;
  /** `[DONE]` was seen, or the body was whole. */
  readonly done: boolean;
}

export interface AskOptions {
  /** Called with all the text so far, each time some arrives. */
  readonly onText?: (text: string) => void;
  readonly signal?: AbortSignal;
  readonly headers?: Readonly<Record<string, string>>;
}

export async function ask(url: string, body: object, options: AskOptions = {}): Promise<Answer> {
  const answer = { status: 0, text: '', finish: null, error: null, retryAfter: null, usage: null, done: false } as {
    -readonly [K in keyof Answer]: Answer[K];
  };
  try {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...options.headers },
      body: JSON.stringify({ model: 'mock', ...body }),
      signal: options.signal ?? AbortSignal.timeout(patienceMs * 2),
    });
    answer.status = response.status;
    answer.retryAfter = response.headers.get('retry-after');
    if (response.headers.get('content-type')?.startsWith('text/event-stream') !== true) {
      take(answer, await response.json());
      answer.done = true;
      return answer;
    }
    let rest = '';
    for await (const part of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      const events = (rest + part).split('\n\n');
      rest = events.pop() ?? '';
      for (const event of events) {
        const data = event.split('\n').find((line) => line.startsWith('data: '));
        if (data === 'data: [DONE]') answer.done = true;
        else if (data !== undefined) take(answer, JSON.parse(data.slice(6)));
      }
      options.onText?.(answer.text);
    }
    if (!answer.done) answer.error ??= 'cut';
  } catch {
    answer.error ??= 'cut';
  }
  return answer;
}

interface Wire {
  readonly choices?: readonly { readonly text?: string; readonly finish_reason?: string | null }[];
  readonly usage?: unknown;
  readonly error?: { readonly code?: string | null; readonly type: string };
}

function take(answer: { -readonly [K in keyof Answer]: Answer[K] }, wire: unknown): void {
  const { choices, usage, error } = wire as Wire;
  for (const { text, finish_reason } of choices ?? []) {
    answer.text += text ?? '';
    answer.finish = finish_reason ?? answer.finish;
  }
  answer.usage = usage ?? answer.usage;
  if (error) answer.error = error.code ?? error.type;
}
