/** A gateway on a real socket with a frontend that does what a script says. */
import { once } from 'node:events';
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { connect, type Socket } from 'node:net';
import { pino } from 'pino';
import type { ClientStream, FrontendRequest, Prepared } from '../../actors/index.js';
import {
  createGateway,
  createModelRegistry,
  createPreprocessor,
  type Gateway,
  type GatewayOptions,
  type ModelRegistry,
} from '../../gateway/index.js';
import { openMockVocabulary } from '../../gpu/index.js';

export interface Call {
  readonly prepared: Prepared;
  readonly stream: ClientStream;
  readonly ticket: number;
  readonly label: string;
  readonly trace: string | undefined;
}

export type Script = (call: Call) => void;

export interface Rig {
  readonly url: string;
  readonly port: number;
  readonly gateway: Gateway;
  readonly models: ModelRegistry;
  readonly calls: readonly Call[];
  /** Tickets of ClientGone, in order. */
  readonly gone: readonly number[];
  /** Lines of the log, parsed. */
  readonly log: readonly Record<string, unknown>[];
  /** Resolves when `condition` holds after some request, text of the log or ClientGone; rejects after 5 s. */
  until(condition: () => boolean, what: string): Promise<void>;
  close(): Promise<void>;
}

export interface RigOptions extends Partial<Omit<GatewayOptions, 'submit' | 'models'>> {
  readonly script?: Script;
  /** Answers of `submit`; true when it is absent. */
  readonly accept?: (request: FrontendRequest) => boolean;
}

/** Says each token of `texts` and ends. */
export function answer(texts: readonly string[]): Script {
  return ({ prepared, stream, ticket }) => {
    stream.begin(`r${ticket}`, prepared);
    for (let choice = 0; choice < prepared.n; choice++) {
      for (const text of texts) stream.text(choice, text, 1);
      stream.finish(choice, 'stop');
    }
    stream.end({
      promptTokens: prepared.prompt.length,
      completionTokens: texts.length * prepared.n,
      cachedTokens: 2,
    });
  };
}

export async function openRig(options: RigOptions = {}): Promise<Rig> {
  const { script = answer(['Hel', 'lo']), accept = () => true, ...rest } = options;
  const calls: Call[] = [];
  const gone: number[] = [];
  const log: Record<string, unknown>[] = [];
  const models = createModelRegistry();
  models.add(openMockVocabulary('mock'));
  const preprocessor = createPreprocessor(models, rest.limits ?? {}, (error) => {
    log.push({ defect: String(error) });
    console.error(error);
  });
  const watchers = new Set<() => void>();
  const changed = () => {
    for (const watcher of [...watchers]) watcher();
  };
  const gateway = createGateway({
    models,
    listen: { host: '127.0.0.1', port: 0 },
    status: () => ({ ready: true, reason: '', instances: [], samples: [] }),
    log: pino(
      { level: 'trace' },
      {
        write(line: string) {
          log.push(JSON.parse(line) as Record<string, unknown>);
          changed();
        },
      },
    ),
    ...rest,
    submit(request) {
      if (!accept(request)) return false;
      if (request.type === 'ClientGone') {
        gone.push(request.ticket);
      } else {
        const result = preprocessor.prepare(request.api, request.body, request.hints);
        if (!result.ok) request.stream.fail(result.error);
        else {
          const { stream, ticket, label, trace } = request;
          const call = { prepared: result.prepared, stream, ticket, label, trace };
          calls.push(call);
          script(call);
        }
      }
      changed();
      return true;
    },
  });
  const url = await gateway.listen();
  return {
    url,
    port: Number(new URL(url).port),
    gateway,
    models,
    calls,
    gone,
    log,
    until(condition, what) {
      return new Promise((resolve, reject) => {
        const finish = (error?: Error) => {
          watchers.delete(check);
          clearTimeout(timer);
          if (error === undefined) resolve();
          else reject(error);
        };
        const check = () => {
          if (condition()) finish();
        };
        const timer = setTimeout(() => finish(new Error(`never happened: ${what}`)), 5000);
        watchers.add(check);
        check();
      });
    },
    close: () => gateway.stop(0),
  };
}

export const chatBody = (more: Record<string, unknown> = {}) => ({
  model: 'mock',
  messages: [{ role: 'user', content: 'hi' }],
  ...more,
});

export interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: specs look into arbitrary JSON
  readonly body: any;
}

/** One request on a connection of its own, body as it is given. */
export function send(
  rig: { readonly port: number },
  path: string,
  init: { method?: string; body?: string | Uint8Array; headers?: Record<string, string> } = {},
): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(
      {
        host: '127.0.0.1',
        port: rig.port,
        path,
        method: init.method ?? (init.body === undefined ? 'GET' : 'POST'),
        headers: { ...(init.body === undefined ? {} : { 'content-type': 'application/json' }), ...init.headers },
        agent: false,
      },
      (response) => {
        const parts: Buffer[] = [];
        response.on('data', (part: Buffer) => parts.push(part));
        response.on('error', reject);
        response.on('end', () => {
          const text = Buffer.concat(parts).toString();
          let body: unknown;
          try {
            body = JSON.parse(text);
          } catch {
            body = undefined;
          }
          resolve({ status: response.statusCode ?? 0, headers: response.headers, text, body });
        });
      },
    );
    request.on('error', reject);
    request.end(init.body);
  });
}

export const post = (
  rig: { readonly port: number },
  path: string,
  body: unknown,
  headers: Record<string, string> = {},
) => send(rig, path, { body: JSON.stringify(body), headers });

/** The JSON of each event, `[DONE]` included as a string; comments left out. */
// biome-ignore lint/suspicious/noExplicitAny: as above
export function events(text: string): any[] {
  return text
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => (event === 'data: [DONE]' ? '[DONE]' : JSON.parse(event.slice(6))));
}

/** A bare socket; `received` grows, `closed` resolves when the peer has ended. */
export async function openSocket(
  port: number,
): Promise<{ socket: Socket; received: () => string; closed: Promise<void> }> {
  const socket = connect(port, '127.0.0.1');
  await once(socket, 'connect');
  const parts: Buffer[] = [];
  socket.on('data', (part: Buffer) => parts.push(part));
  socket.on('error', () => undefined);
  const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()));
  return { socket, received: () => Buffer.concat(parts).toString(), closed };
}
