/**
 * OpenAI's response shapes, as text. Of a streamed chunk only the text changes from event to event; everything around it is
 * made once per choice.
 */
import type { Api, DryRunAnswer, FinishReason, Prepared, TokenLogprob, Usage } from '../actors/index.js';
import type { Delta } from './answer/delta.js';
import type { PieceTable } from './detokenizer.js';

const json = JSON.stringify;

function responseId(api: Api, id: string): string {
  return `${api === 'chat' ? 'chatcmpl' : 'cmpl'}-${id}`;
}

function usageJson(usage: Usage): string {
  return json({
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: { cached_tokens: usage.cachedTokens },
  });
}

/** Dynamo's shape of an answer to `query_instance_id`: who would serve the request, and its prompt as tokens. */
function nvextJson({ decode, prefill, prompt }: DryRunAnswer): string {
  const computes = prefill ?? decode;
  return json({ worker_id: { prefill_worker_id: computes, decode_worker_id: decode }, token_ids: [...prompt] });
}

interface ChunkParts {
  /** From `data: ` up to the JSON string of the text. */
  readonly before: string;
  /** From there to the end of the event, when there are no log probabilities. */
  readonly after: string;
  readonly closing: string;
}

/** The events of one streamed response. `null` usage goes into every chunk when the client asked for usage. */
export class Chunks {
  readonly #api: Api;
  readonly #id: string;
  readonly #head: string;
  readonly #closing: string;
  readonly #parts: ChunkParts[];

  constructor(api: Api, id: string, created: number, prepared: Prepared, includeUsage: boolean) {
    const object = api === 'chat' ? 'chat.completion.chunk' : 'text_completion';
    this.#api = api;
    this.#id = id;
    this.#head = `data: {"id":${json(responseId(api, id))},"object":"${object}","created":${created},"model":${json(prepared.model)},"choices":[`;
    this.#closing = includeUsage ? '],"usage":null}\n\n' : ']}\n\n';
    this.#parts = Array.from({ length: prepared.n }, (_, index) => this.#choice(index));
  }

  #choice(index: number): ChunkParts {
    const chat = this.#api === 'chat';
    const before = `${this.#head}{"index":${index},${chat ? '"delta":{"content":' : '"text":'}`;
    const closing = this.#closing;
    return { before, after: `${chat ? '}' : ''},"logprobs":null,"finish_reason":null}${closing}`, closing };
  }

  /** The first event of a choice; completions have none. */
  role(choice: number): string {
    if (this.#api === 'completion') return '';
    const delta = '"delta":{"role":"assistant","content":"","refusal":null}';
    return `${this.#head}{"index":${choice},${delta},"logprobs":null,"finish_reason":null}${this.#closing}`;
  }

  text(choice: number, text: string): string {
    const parts = this.#parts[choice] as ChunkParts;
    return parts.before + json(text) + parts.after;
  }

  textWithLogprobs(choice: number, text: string, logprobs: string): string {
    const { before, closing } = this.#parts[choice] as ChunkParts;
    const brace = this.#api === 'chat' ? '}' : '';
    return `${before}${json(text)}${brace},"logprobs":${logprobs},"finish_reason":null}${closing}`;
  }

  /** A piece of an answer that says more than text: reasoning, or a call of a tool. */
  delta(choice: number, delta: Delta): string {
    if (delta.kind === 'content') return this.text(choice, delta.text);
    return `${this.#head}{"index":${choice},"delta":${this.#deltaJson(choice, delta)},"logprobs":null,"finish_reason":null}${this.#closing}`;
  }

  #deltaJson(choice: number, delta: Delta): string {
    switch (delta.kind) {
      case 'call': {
        const call = { index: delta.call, ...toolCall(this.#id, choice, delta.call, delta.name, '') };
        return json({ tool_calls: [call] });
      }
      case 'arguments':
        return json({ tool_calls: [{ index: delta.call, function: { arguments: delta.text } }] });
      default:
        return json({ [delta.kind === 'reasoning' ? 'reasoning_content' : 'content']: delta.text });
    }
  }

  finish(choice: number, reason: WireFinish): string {
    const empty = this.#api === 'chat' ? '"delta":{}' : '"text":""';
    return `${this.#head}{"index":${choice},${empty},"logprobs":null,"finish_reason":"${reason}"}${this.#closing}`;
  }

  dryRun(answer: DryRunAnswer): string {
    return `${this.#head}],"nvext":${nvextJson(answer)}}\n\n`;
  }

  usage(usage: Usage): string {
    return `${this.#head}],"usage":${usageJson(usage)}}\n\n`;
  }
}

export type WireFinish = FinishReason | 'tool_calls';

/** OpenAI's shape of a call. The same request names its calls the same, streamed or not. */
function toolCall(id: string, choice: number, call: number, name: string, text: string) {
  return { id: `call_${id}_${choice}_${call}`, type: 'function', function: { name, arguments: text } };
}

interface ChoiceText {
  readonly text: string;
  /** Undefined: the answer has none of its own. */
  readonly reasoning?: string | undefined;
  readonly calls?: readonly { readonly name: string; readonly arguments: string }[];
  readonly logprobs: string;
  readonly finish: WireFinish | null;
}

export function wholeResponse(
  api: Api,
  id: string,
  created: number,
  model: string,
  choices: readonly ChoiceText[],
  usage: Usage,
  dryRun?: DryRunAnswer,
): string {
  const body = choices.map((choice, index) => {
    const { text, logprobs, finish } = choice;
    const content = api === 'chat' ? `"message":${messageJson(id, index, choice)}` : `"text":${json(text)}`;
    return `{"index":${index},${content},"logprobs":${logprobs},"finish_reason":${json(finish)}}`;
  });
  const object = api === 'chat' ? 'chat.completion' : 'text_completion';
  return `{"id":${json(responseId(api, id))},"object":"${object}","created":${created},"model":${json(model)},"choices":[${body.join(',')}],"usage":${usageJson(usage)}${dryRun === undefined ? '' : `,"nvext":${nvextJson(dryRun)}`}}`;
}

function messageJson(id: string, choice: number, { text, reasoning, calls = [] }: ChoiceText): string {
  return json({
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    refusal: null,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0
      ? {}
      : { tool_calls: calls.map((call, index) => toolCall(id, choice, index, call.name, call.arguments)) }),
  });
}

/** OpenAI's `logprobs` object for some tokens of a choice. `offset`: characters of the choice before them. */
export function logprobsJson(
  api: Api,
  pieces: PieceTable,
  tokens: readonly TokenLogprob[],
  alternatives: boolean,
  offset: number,
): string {
  if (api === 'chat') {
    const content = tokens.map((item) => ({
      ...chatToken(pieces, item.token, item.logprob),
      top_logprobs: alternatives ? item.top.map(([token, logprob]) => chatToken(pieces, token, logprob)) : [],
    }));
    return json({ content, refusal: null });
  }
  let at = offset;
  const names = tokens.map(({ token }) => tokenName(pieces, token));
  return json({
    tokens: names,
    token_logprobs: tokens.map(({ logprob }) => logprob),
    top_logprobs: alternatives
      ? tokens.map(({ top }) => Object.fromEntries(top.map(([token, logprob]) => [tokenName(pieces, token), logprob])))
      : null,
    text_offset: names.map((name) => {
      const here = at;
      at += name.startsWith('bytes:') ? 1 : name.length;
      return here;
    }),
  });
}

function chatToken(pieces: PieceTable, token: number, logprob: number) {
  const bytes = pieces.bytes(token);
  return { token: pieces.text(token) ?? Buffer.from(bytes).toString(), logprob, bytes: [...bytes] };
}

/** Half a character cannot be a JSON string: OpenAI writes such tokens as `bytes:\xe2\x98`. */
function tokenName(pieces: PieceTable, token: number): string {
  const text = pieces.text(token);
  if (text !== undefined) return text;
  return `bytes:${[...pieces.bytes(token)].map((byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('')}`;
}
