/** Streaming clients, a socket each, that remember when every piece of text arrived and how the answer ended. */
import { type ClientRequest, request } from 'node:http';
import type { Socket } from 'node:net';

/** complete: finished and `[DONE]`; failed: an error, a refusal or a shortened answer; cut: the connection closed before the end; left: we closed it. */
export type StreamEnd = 'complete' | 'failed' | 'cut' | 'hung' | 'left';

export interface Stream {
  readonly index: number;
  /** The client's port, by which the server's side of the connection can be found; 0 before it is connected. */
  readonly port: number;
  readonly text: string;
  /** `performance.now()` of each event that held text. */
  readonly at: readonly number[];
  readonly sentAt: number;
  readonly endedAt: number;
  readonly end: StreamEnd | undefined;
  /** Why it failed: an error code or an HTTP status. */
  readonly detail: string;
}

export interface Streams {
  readonly all: readonly Stream[];
  /** Resolves when `test` holds, looked at after every piece of text and every end; false when all have ended without. */
  reached(test: (all: readonly Stream[]) => boolean): Promise<boolean>;
  /** Closes this client's connection. */
  leave(index: number): void;
  /** Resolves when all have ended; those that have not within `ms` are closed and count as hung. */
  ended(ms: number): Promise<readonly Stream[]>;
}

type Open = { -readonly [K in keyof Stream]: Stream[K] } & { at: number[] };

export interface ClientOptions {
  /** @default 127.0.0.1 */
  readonly host?: string;
  /** Reads nothing for so long after the first text: the server's side of the connection fills up. @default 0 */
  readonly pauseReadingMs?: number;
}

/** One stream per body, all at once. */
export function openStreams(
  port: number,
  path: string,
  bodies: readonly object[],
  options: ClientOptions = {},
): Streams {
  const waiting = new Set<() => void>();
  const news = () => {
    for (const look of waiting) look();
  };
  const calls: ClientRequest[] = [];
  const all = bodies.map((body, index): Open => {
    const stream: Open = {
      index,
      port: 0,
      text: '',
      at: [],
      sentAt: performance.now(),
      endedAt: 0,
      end: undefined,
      detail: '',
    };
    calls.push(send(port, path, body, stream, news, options));
    return stream;
  });
  const when = (test: () => boolean): Promise<void> =>
    new Promise((resolve) => {
      const look = () => {
        if (!test()) return;
        waiting.delete(look);
        resolve();
      };
      waiting.add(look);
      look();
    });
  const over = () => all.every(({ end }) => end !== undefined);
  return {
    all,
    async reached(test) {
      await when(() => test(all) || over());
      return test(all);
    },
    leave(index) {
      const stream = all[index];
      if (stream === undefined) return;
      finish(stream, 'left', '', news);
      calls[index]?.destroy();
    },
    async ended(ms) {
      const late = setTimeout(() => {
        for (const [index, stream] of all.entries()) {
          if (stream.end === undefined) finish(stream, 'hung', '', news);
          calls[index]?.destroy();
        }
      }, ms);
      await when(over);
      clearTimeout(late);
      return all;
    },
  };
}

function finish(stream: Open, end: StreamEnd, detail: string, news: () => void): void {
  if (stream.end !== undefined) return;
  stream.end = end;
  stream.detail = detail;
  stream.endedAt = performance.now();
  news();
}

interface Wire {
  readonly choices?: readonly {
    readonly text?: string;
    readonly delta?: { readonly content?: string | null };
    readonly finish_reason?: string | null;
  }[];
  readonly error?: { readonly code?: string | null; readonly type?: string };
}

function codeIn(body: string): string {
  try {
    return (JSON.parse(body) as Wire).error?.code ?? '';
  } catch {
    return '';
  }
}

function send(
  port: number,
  path: string,
  body: object,
  stream: Open,
  news: () => void,
  { host = '127.0.0.1', pauseReadingMs = 0 }: ClientOptions,
): ClientRequest {
  const text = JSON.stringify(body);
  let finished: string | null = null;
  let error = '';
  let paused = false;
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
  const call = request({ host, port, path, method: 'POST', agent: false, headers });
  const over = () => {
    if (error !== '') finish(stream, 'failed', error, news);
    else finish(stream, finished === null ? 'cut' : 'failed', finished ?? '', news);
  };
  const take = (data: string) => {
    if (data === '[DONE]') {
      if (error === '' && finished === 'length') finish(stream, 'complete', '', news);
      return;
    }
    const wire = JSON.parse(data) as Wire;
    if (wire.error) error = wire.error.code ?? wire.error.type ?? 'error';
    const choice = wire.choices?.[0];
    finished = choice?.finish_reason ?? finished;
    const piece = choice?.text ?? choice?.delta?.content ?? '';
    if (piece === '') return;
    stream.text += piece;
    stream.at.push(performance.now());
    news();
  };
  call.on('socket', (socket: Socket) => {
    socket.setNoDelay(true);
    socket.once('connect', () => {
      stream.port = socket.localPort ?? 0;
    });
  });
  call.on('response', (response) => {
    response.setEncoding('utf8');
    if (response.statusCode !== 200) {
      let body = '';
      response.on('data', (chunk: string) => {
        body += chunk;
      });
      const refused = () => finish(stream, 'failed', `HTTP ${response.statusCode} ${codeIn(body)}`.trim(), news);
      response.on('close', refused);
      response.on('error', refused);
      return;
    }
    let rest = '';
    response.on('data', (chunk: string) => {
      const lines = (rest + chunk).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) if (line.startsWith('data: ')) take(line.slice(6));
      if (pauseReadingMs === 0 || paused || stream.at.length === 0) return;
      paused = true;
      response.pause();
      setTimeout(() => response.resume(), pauseReadingMs);
    });
    response.on('close', over);
    response.on('error', over);
  });
  call.on('error', over);
  call.end(text);
  return call;
}
