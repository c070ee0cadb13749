/**
 * The model's own chat template, and how its output becomes tokens without letting a client's text pose as control tokens
 * (docs/decisions/0006).
 */
import { randomBytes } from 'node:crypto';
import { Template } from '@huggingface/jinja';
import type { RequestError } from '../actors/index.js';
import type { Vocabulary } from '../gpu/index.js';
import type { ChatMessage } from './chat-messages.js';
import { excerpt, gatewayError } from './errors.js';
import { type Tool, toolsAsText, toolsJson } from './tools.js';

export type PromptTokens =
  | { readonly ok: true; readonly tokens: Uint32Array }
  | { readonly ok: false; readonly error: RequestError };

export interface ChatTemplate {
  /** The prompt of a conversation, the assistant's turn opened. Never throws. */
  tokenize(messages: readonly ChatMessage[], tools?: readonly Tool[]): PromptTokens;
  /** Models of this template write down what they think before they answer, or their prompt opens it already. */
  readonly reasoning: 'may' | 'open' | undefined;
}

type Rendered = { readonly ok: true; readonly text: string } | { readonly ok: false; readonly error: RequestError };
type Render = (messages: readonly ChatMessage[], tools: readonly Tool[]) => Rendered;

/** `raise_exception` of a template: the client's messages are at fault, not the template. */
class Refusal extends Error {}

const chatMl: Render = (messages) => ({
  ok: true,
  text: `${messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join('')}<|im_start|>assistant\n`,
});

/** `report` hears why a template does not compile or render; clients are only told that it does not. */
export function compileTemplate(vocabulary: Vocabulary, report: (error: unknown) => void): ChatTemplate {
  const render = vocabulary.chatTemplate === '' ? chatMl : jinja(vocabulary, report);
  // A template writes its own BOS; without a template the vocabulary knows whether there is one.
  const addBos = vocabulary.chatTemplate === '';
  const control = new ControlTokens(vocabulary);
  const own = new Map<string, string>();
  const knowsTools = /\btools\b/.test(vocabulary.chatTemplate) && /\btool_calls\b/.test(vocabulary.chatTemplate);

  /** Control tokens that the template writes by itself for these roles, whatever the messages say. */
  function expected(messages: readonly ChatMessage[], tools: readonly Tool[]): string | undefined {
    const key = `${tools.length} ${messages.map(({ role, calls }) => `${role}${calls?.length ?? ''}`).join()}`;
    let sequence = own.get(key);
    if (sequence === undefined) {
      const bare = render(messages.map(silent), tools.map(anyTool));
      if (!bare.ok) return undefined;
      sequence = control.sequence(vocabulary.tokenize(bare.text, { special: true, addBos }));
      if (own.size >= 256) own.clear();
      own.set(key, sequence);
    }
    return sequence;
  }

  /** Contents are kept apart from control tokens; what a template writes of tools is not, so it may spell none. */
  function spells(messages: readonly ChatMessage[], tools: readonly Tool[]): boolean {
    const calls = messages.flatMap((message) => message.calls ?? []);
    const ids = messages.flatMap(({ callId }) => callId ?? []);
    if (tools.length + calls.length + ids.length === 0) return false;
    const text = JSON.stringify([tools, calls, ids]);
    return control.sequence(vocabulary.tokenize(text, { special: true, addBos: false })) !== '';
  }

  const opened = render([{ role: 'user', content: 'x' }], []);
  const opens = opened.ok && /<think>\s*$/.test(opened.text);
  return {
    reasoning: opens ? 'open' : vocabulary.chatTemplate.includes('<think>') ? 'may' : undefined,
    tokenize(given, offered = []) {
      const messages = knowsTools ? given : toolsAsText(given, offered);
      const tools = knowsTools ? offered : [];
      const whole = render(messages, tools);
      if (!whole.ok) return whole;
      try {
        if (spells(messages, tools)) {
          const text = 'A tool or a call spells a control token of this model.';
          return { ok: false, error: gatewayError('GWY_BAD_VALUE', [text], 'tools') };
        }
        const tokens = vocabulary.tokenize(whole.text, { special: true, addBos });
        if (control.sequence(tokens) === expected(messages, tools)) return { ok: true, tokens };
        const draw = (some: readonly ChatMessage[]) => render(some, tools);
        return isolated(vocabulary, control, draw, messages, whole.text, addBos);
      } catch {
        return { ok: false, error: gatewayError('GWY_TOKENIZER') };
      }
    },
  };
}

const silent = ({ role, calls, callId }: ChatMessage): ChatMessage => ({
  role,
  content: 'x',
  ...(calls === undefined ? {} : { calls: calls.map(() => ({ id: 'x', name: 'x', arguments: '{}' })) }),
  ...(callId === undefined ? {} : { callId: 'x' }),
});
const anyTool = (): Tool => ({ name: 'x', parameters: {} });

/** A message as templates know it. */
const templated = ({ role, content, calls, callId }: ChatMessage) => ({
  role,
  content,
  ...(calls === undefined
    ? {}
    : {
        tool_calls: calls.map(({ id, name, arguments: text }) => ({
          id,
          type: 'function',
          function: { name, arguments: JSON.parse(text) as unknown },
        })),
      }),
  ...(callId === undefined ? {} : { tool_call_id: callId }),
});

class ControlTokens {
  readonly #vocabulary: Vocabulary;
  readonly #known: (boolean | undefined)[] = [];

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary;
  }

  #is(token: number): boolean {
    let known = this.#known[token];
    if (known === undefined) {
      known = this.#vocabulary.piece(token).length === 0;
      this.#known[token] = known;
    }
    return known;
  }

  sequence(tokens: Uint32Array): string {
    let out = '';
    for (const token of tokens) if (this.#is(token)) out += `${token},`;
    return out;
  }
}

function jinja(vocabulary: Vocabulary, report: (error: unknown) => void): Render {
  const broken: Rendered = { ok: false, error: gatewayError('GWY_TEMPLATE_BROKEN') };
  let template: Template;
  try {
    // The library's own raise_exception throws what its defects throw too; a function of another name can be told apart.
    template = new Template(vocabulary.chatTemplate.replace(/\braise_exception\b/g, 'refuse_messages'));
  } catch (error) {
    report(error);
    return () => broken;
  }
  const constants = {
    bos_token: vocabulary.bosToken,
    eos_token: vocabulary.eosToken,
    add_generation_prompt: true,
    refuse_messages: (message: unknown) => {
      throw new Refusal(String(message));
    },
  };
  return (messages, tools) => {
    try {
      const given = { messages: messages.map(templated), ...(tools.length === 0 ? {} : { tools: toolsJson(tools) }) };
      return { ok: true, text: template.render({ ...constants, ...given }) };
    } catch (error) {
      if (!(error instanceof Refusal)) {
        report(error);
        return broken;
      }
      return { ok: false, error: gatewayError('GWY_TEMPLATE_REFUSED', [excerpt(error.message)], 'messages') };
    }
  };
}

/**
 * Some message spells a control token, or the template looks at the contents. The conversation is rendered a second time
 * with a random mark in place of each content; where that shows the template to copy contents as they are (or trimmed),
 * its own text is tokenized with control tokens and the contents without.
 */
function isolated(
  vocabulary: Vocabulary,
  control: ControlTokens,
  render: (messages: readonly ChatMessage[]) => Rendered,
  messages: readonly ChatMessage[],
  whole: string,
  addBos: boolean,
): PromptTokens {
  const nonce = randomBytes(12).toString('hex');
  const marked = render(messages.map((message, index) => ({ ...message, content: `mark${nonce}n${index}e` })));
  if (marked.ok) {
    const parts = marked.text.split(new RegExp(`mark${nonce}n(\\d+)e`));
    for (const adapt of [(text: string) => text, (text: string) => text.trim()]) {
      const text = (part: string, at: number) => (at % 2 === 0 ? part : adapt(messages[Number(part)]?.content ?? ''));
      if (parts.map(text).join('') !== whole) continue;
      const pieces = parts.map((part, at) =>
        vocabulary.tokenize(text(part, at), { special: at % 2 === 0, addBos: addBos && at === 0 }),
      );
      return { ok: true, tokens: concat(pieces) };
    }
  }
  // The template rewrites contents. That is fine as long as no control token comes of it.
  const tokens = vocabulary.tokenize(whole, { special: true, addBos });
  const bare = marked.ok ? vocabulary.tokenize(marked.text, { special: true, addBos }) : undefined;
  if (bare !== undefined && control.sequence(tokens) === control.sequence(bare)) return { ok: true, tokens };
  const text = "Text that spells a control token cannot be kept apart by this model's chat template.";
  return { ok: false, error: gatewayError('GWY_BAD_VALUE', [text], 'messages') };
}

function concat(pieces: readonly Uint32Array[]): Uint32Array {
  const all = new Uint32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
