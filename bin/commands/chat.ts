/** `dynact chat`: a conversation in the terminal, over the same HTTP API that everybody uses. */
import { createInterface } from 'node:readline';
import { describe, isSupervisorError, nodeStatus } from '../../supervisors/index.js';
import type { ChatOptions } from './main.js';
import { configurationOf } from './settings.js';

interface Message {
  readonly role: 'system' | 'user' | 'assistant';
  readonly content: string;
}

/** Longer than a server's first-token deadline: then its own error says more than ours. */
const silentMs = 120_000;

export async function chat(options: ChatOptions): Promise<void> {
  const url = (options.url ?? (await runningUrl(options))).replace(/\/+$/, '');
  const model = options.chatModel ?? (await firstModel(url));
  const interactive = process.stdin.isTTY === true;
  const system: Message[] = options.system === undefined ? [] : [{ role: 'system', content: options.system }];
  let history = [...system];
  let answering: AbortController | undefined;

  const terminal = createInterface({
    input: process.stdin,
    terminal: interactive,
    prompt: interactive ? '> ' : '',
    ...(interactive ? { output: process.stdout } : {}),
  });
  terminal.on('SIGINT', () => {
    if (answering) answering.abort();
    else terminal.close();
  });
  if (!interactive) process.once('SIGINT', () => process.exit(130));
  if (interactive) process.stdout.write(`${model} at ${url}; /exit ends\n`);
  terminal.prompt();

  for await (const line of terminal) {
    const text = line.trim();
    if (text === '/exit' || text === '/quit') break;
    if (text === '/reset') history = [...system];
    else if (text.startsWith('/')) process.stdout.write('/reset forgets the conversation, /exit ends\n');
    else if (text !== '') {
      answering = new AbortController();
      history.push({ role: 'user', content: text });
      try {
        const answer = await ask(url, model, history, options, answering.signal);
        history.push({ role: 'assistant', content: answer });
      } catch (error) {
        history.pop();
        if (answering.signal.aborted) process.stdout.write('\n(stopped)\n');
        else {
          process.stderr.write(`\n${describe(error)}\n`);
          if (!interactive) process.exitCode = 1;
        }
      }
      answering = undefined;
    }
    terminal.prompt();
  }
  terminal.close();
}

async function runningUrl(options: ChatOptions): Promise<string> {
  const { config } = await configurationOf({ stateDir: options.stateDir });
  try {
    const { url } = await nodeStatus(config.node.stateDir);
    if (url !== '') return url;
  } catch (error) {
    // A server without a node here, such as a container with a published port, is just as good.
    const fallback = `http://${config.http.host}:${config.http.port}`;
    const alive = await fetch(`${fallback}/live`, { signal: AbortSignal.timeout(2000) }).catch(() => undefined);
    if (alive?.ok) return fallback;
    if (isSupervisorError(error)) throw error;
  }
  return `http://${config.http.host}:${config.http.port}`;
}

async function firstModel(url: string): Promise<string> {
  const response = await fetch(`${url}/v1/models`, { signal: AbortSignal.timeout(10_000) }).catch((error) => {
    throw new Error(`no server answers at ${url}`, { cause: error });
  });
  if (!response.ok) throw new Error(await complaint(response));
  const list = (await response.json()) as { data?: readonly { id: string }[] };
  const first = list.data?.[0]?.id;
  if (first === undefined) throw new Error(`${url} serves no model yet; see dynact status`);
  return first;
}

/** Streams one answer to stdout and returns it. */
async function ask(
  url: string,
  model: string,
  messages: readonly Message[],
  options: ChatOptions,
  stop: AbortSignal,
): Promise<string> {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(new Error('the server went silent')), silentMs);
  try {
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      signal: AbortSignal.any([stop, silence.signal]),
      body: JSON.stringify({
        model,
        messages,
        stream: true,
        ...(options.temperature === undefined ? {} : { temperature: options.temperature }),
        ...(options.maxTokens === undefined ? {} : { max_tokens: options.maxTokens }),
        ...(options.seed === undefined ? {} : { seed: options.seed }),
      }),
    });
    if (!response.ok || response.body === null) throw new Error(await complaint(response));
    let answer = '';
    for await (const data of events(response.body)) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error('the server went silent')), silentMs);
      if (data === '[DONE]') {
        process.stdout.write('\n');
        return answer;
      }
      const chunk = JSON.parse(data) as {
        error?: { message: string };
        choices?: readonly { delta?: { content?: string | null } }[];
      };
      if (chunk.error) throw new Error(chunk.error.message);
      const text = chunk.choices?.[0]?.delta?.content ?? '';
      process.stdout.write(text);
      answer += text;
    }
    throw new Error('the answer broke off');
  } finally {
    clearTimeout(timer);
  }
}

/** The data of each server-sent event. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const bytes of body as unknown as AsyncIterable<Uint8Array>) {
    rest += decoder.decode(bytes, { stream: true });
    const lines = rest.split(/\r?\n/);
    rest = lines.pop() ?? '';
    for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
  }
}

async function complaint(response: Response): Promise<string> {
  const text = await response.text();
  try {
    return (JSON.parse(text) as { error: { message: string } }).error.message;
  } catch {
    return `HTTP ${response.status}: ${text.slice(0, 200)}`;
  }
}
