/** `messages` of a chat request as a template sees them: a role and a text each. */
import type { RequestError } from '../actors/index.js';
import { gatewayError } from './errors.js';
import { isRecord } from './json.js';

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string;
  /** Of an assistant that called tools. */
  readonly calls?: readonly ToolCall[];
  /** Of a tool's result: the call that it answers. */
  readonly callId?: string;
}

export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** A JSON object, as text. */
  readonly arguments: string;
}

export type Messages =
  | { readonly ok: true; readonly messages: readonly ChatMessage[] }
  | { readonly ok: false; readonly error: RequestError };

type Content = string | RequestError;

/**
 * Developer messages are system messages: templates know no other name. Several system messages at the beginning become one,
 * because many templates allow only one. Text is made well-formed: a lone surrogate is U+FFFD.
 */
export function readMessages(list: readonly unknown[], limit: number): Messages {
  if (list.length > limit) return bad(`'messages' must have at most ${limit} entries.`, 'messages');
  const messages: ChatMessage[] = [];
  for (const [index, item] of list.entries()) {
    const at = `messages[${index}]`;
    if (!isRecord(item)) return bad(`'${at}' must be an object.`, at);
    const role = item.role === 'developer' ? 'system' : item.role;
    if (role === 'function') return unsupported("Messages of role 'function' are", `${at}.role`);
    if (role !== 'system' && role !== 'user' && role !== 'assistant' && role !== 'tool') {
      return bad(`'${at}.role' must be system, developer, user, assistant or tool.`, `${at}.role`);
    }
    for (const field of ['function_call', 'audio', 'refusal']) {
      const value = item[field];
      const none = value === undefined || value === null || (Array.isArray(value) && value.length === 0);
      if (!none) return unsupported(`'${at}.${field}' is`, `${at}.${field}`);
    }
    const content = readContent(item.content, role, `${at}.content`);
    if (typeof content !== 'string') return { ok: false, error: content };
    const tools = role === 'tool' || role === 'assistant' ? readToolFields(item, role, at) : noTools;
    if ('status' in tools) return { ok: false, error: tools };
    const first = messages[0];
    if (role === 'system' && messages.length === 1 && first?.role === 'system') {
      messages[0] = { role, content: `${first.content}\n\n${content}` };
    } else {
      messages.push({ role, content, ...tools });
    }
  }
  return { ok: true, messages };
}

const noTools: Pick<ChatMessage, 'calls' | 'callId'> = {};

/** What a message says of tools: an assistant's calls, a result's call. */
function readToolFields(
  item: Record<string, unknown>,
  role: 'tool' | 'assistant',
  at: string,
): Pick<ChatMessage, 'calls' | 'callId'> | RequestError {
  if (role === 'tool') {
    const id = item.tool_call_id;
    if (typeof id === 'string' && id.length <= 256) return { callId: wellFormed(id) };
    const where = `${at}.tool_call_id`;
    return gatewayError('GWY_BAD_VALUE', [`'${where}' must be the id of the call that this answers.`], where);
  }
  const list = item.tool_calls;
  if (list === undefined || list === null || (Array.isArray(list) && list.length === 0)) return noTools;
  const where = `${at}.tool_calls`;
  if (!Array.isArray(list) || list.length > 128) {
    return gatewayError('GWY_BAD_VALUE', [`'${where}' must be an array of at most 128 calls.`], where);
  }
  const calls: ToolCall[] = [];
  for (const [index, call] of list.entries()) {
    const told = isRecord(call) && isRecord(call.function) ? call.function : undefined;
    const text = told?.arguments ?? '{}';
    const parsed = typeof text === 'string' ? objectIn(text === '' ? '{}' : text) : undefined;
    if (typeof told?.name !== 'string' || parsed === undefined) {
      const message = `'${where}[${index}]' must be a function with a name and arguments that are a JSON object as text.`;
      return gatewayError('GWY_BAD_VALUE', [message], `${where}[${index}]`);
    }
    const id = isRecord(call) && typeof call.id === 'string' ? call.id : '';
    calls.push({ id: wellFormed(id), name: wellFormed(told.name), arguments: wellFormed(parsed) });
  }
  return { calls };
}

/** A JSON object in its shortest form; undefined if the text is none. */
function objectIn(text: string): string | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isRecord(value) ? JSON.stringify(value) : undefined;
  } catch {
    return undefined;
  }
}

function readContent(content: unknown, role: ChatMessage['role'], at: string): Content {
  if (typeof content === 'string') return wellFormed(content);
  if (content === null || content === undefined) {
    if (role === 'assistant') return '';
    return gatewayError('GWY_BAD_VALUE', [`'${at}' is required.`], at);
  }
  if (!Array.isArray(content) || content.length === 0) {
    return gatewayError('GWY_BAD_VALUE', [`'${at}' must be a string or a non-empty array of text parts.`], at);
  }
  let text = '';
  for (const [index, part] of content.entries()) {
    const where = `${at}[${index}]`;
    if (!isRecord(part) || typeof part.type !== 'string') {
      return gatewayError('GWY_BAD_VALUE', [`'${where}' must be an object with a type.`], where);
    }
    if (part.type !== 'text') {
      return gatewayError('GWY_UNSUPPORTED', [`'${where}': only parts of type text are supported.`], `${where}.type`);
    }
    if (typeof part.text !== 'string') {
      return gatewayError('GWY_BAD_VALUE', [`'${where}.text' must be a string.`], `${where}.text`);
    }
    text += part.text;
  }
  return wellFormed(text);
}

export function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd');
}

function bad(message: string, param: string): Messages {
  return { ok: false, error: gatewayError('GWY_BAD_VALUE', [message], param) };
}

function unsupported(what: string, param: string): Messages {
  return { ok: false, error: gatewayError('GWY_UNSUPPORTED', [`${what} not supported.`], param) };
}
