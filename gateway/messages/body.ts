/**
 * A body of Anthropic's Messages API as a chat body: the same model, template and engine serve both. What has no meaning here and would
 * change the answer is refused; what would not is accepted and left out (docs/clients.md names it).
 */
import type { RequestError } from '../../actors/index.js';
import { gatewayError } from '../errors.js';
import { isRecord } from '../json.js';

type Body = Record<string, unknown>;
type Read<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: RequestError };

/** A fault of the body, thrown inside this file only. */
class Fault extends Error {
  constructor(readonly answer: RequestError) {
    super(answer.message);
  }
}

const bad = (message: string, param: string) => new Fault(gatewayError('GWY_BAD_VALUE', [message], param));
const unsupported = (what: string, param: string) =>
  new Fault(gatewayError('GWY_UNSUPPORTED', [`${what} not supported.`], param));

/** Fields that mean the same and are checked where chat bodies are. */
const alike = ['model', 'stream', 'temperature', 'top_p', 'top_k', 'seed', 'nvext', 'cache_salt'] as const;

/** `counting`: no answer is wanted, so `max_tokens` may be missing. */
export function chatBodyOf(raw: unknown, counting = false): Read<Body> {
  try {
    if (!isRecord(raw)) return { ok: false, error: gatewayError('GWY_BODY_SHAPE') };
    return { ok: true, value: convert(raw, counting) };
  } catch (error) {
    if (error instanceof Fault) return { ok: false, error: error.answer };
    throw error;
  }
}

function convert(raw: Body, counting: boolean): Body {
  const { max_tokens: most, stop_sequences: stops, mcp_servers: servers, container } = raw;
  if (!counting && !(Number.isInteger(most) && (most as number) >= 1)) {
    throw bad("'max_tokens' is required: an integer of at least 1.", 'max_tokens');
  }
  const texts = stops ?? [];
  if (!Array.isArray(texts) || texts.length > 32 || !texts.every((stop) => typeof stop === 'string' && stop !== '')) {
    throw bad("'stop_sequences' must be an array of at most 32 non-empty strings.", 'stop_sequences');
  }
  if (Array.isArray(servers) && servers.length > 0) throw unsupported("'mcp_servers' is", 'mcp_servers');
  if (container != null) throw unsupported("'container' is", 'container');
  if (!Array.isArray(raw.messages) || raw.messages.length === 0) {
    throw bad("'messages' must be a non-empty array.", 'messages');
  }
  const system = raw.system == null ? [] : [{ role: 'system', content: textOf(raw.system, 'system') }];
  const turns = raw.messages.flatMap((message: unknown, at: number) => messagesOf(message, `messages[${at}]`));
  return {
    ...Object.fromEntries(alike.filter((name) => raw[name] !== undefined).map((name) => [name, raw[name]])),
    messages: [...system, ...turns],
    ...(counting ? {} : { max_tokens: most }),
    ...(texts.length === 0 ? {} : { stop: texts }),
    ...toolsOf(raw),
  };
}

function messagesOf(message: unknown, at: string): Body[] {
  if (!isRecord(message)) throw bad(`'${at}' must be an object.`, at);
  const { role, content } = message;
  if (role !== 'user' && role !== 'assistant') throw bad(`'${at}.role' must be user or assistant.`, `${at}.role`);
  if (typeof content === 'string') return [{ role, content }];
  if (!Array.isArray(content) || content.length === 0) {
    throw bad(`'${at}.content' must be a string or a non-empty array of blocks.`, `${at}.content`);
  }
  const results: Body[] = [];
  const calls: Body[] = [];
  let text = '';
  for (const [index, block] of content.entries()) {
    const where = `${at}.content[${index}]`;
    if (!isRecord(block)) throw bad(`'${where}' must be an object.`, where);
    switch (block.type) {
      case 'text':
        if (typeof block.text !== 'string') throw bad(`'${where}.text' must be a string.`, `${where}.text`);
        text += block.text;
        break;
      case 'tool_use':
        if (role !== 'assistant') throw bad(`'${where}': only an assistant uses tools.`, where);
        calls.push({
          id: block.id,
          type: 'function',
          function: { name: block.name, arguments: JSON.stringify(block.input ?? {}) },
        });
        break;
      case 'tool_result': {
        if (role !== 'user') throw bad(`'${where}': only a user gives results.`, where);
        const told =
          block.content === undefined || block.content === null ? '' : textOf(block.content, `${where}.content`);
        results.push({
          role: 'tool',
          tool_call_id: block.tool_use_id,
          content: block.is_error === true ? `Error: ${told}` : told,
        });
        break;
      }
      case 'thinking':
      case 'redacted_thinking':
        // Templates leave earlier reasoning out too.
        break;
      default:
        throw unsupported(`'${where}': blocks of type ${JSON.stringify(block.type)} are`, `${where}.type`);
    }
  }
  if (role === 'assistant') return [{ role, content: text, ...(calls.length === 0 ? {} : { tool_calls: calls }) }];
  return [...results, ...(text === '' && results.length > 0 ? [] : [{ role, content: text }])];
}

/** A string, or blocks of text. */
function textOf(content: unknown, at: string): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) throw bad(`'${at}' must be a string or an array of text blocks.`, at);
  return content
    .map((block: unknown, index) => {
      if (isRecord(block) && block.type === 'text' && typeof block.text === 'string') return block.text;
      throw isRecord(block) && block.type !== 'text'
        ? unsupported(`'${at}[${index}]': blocks of type ${JSON.stringify(block.type)} are`, `${at}[${index}].type`)
        : bad(`'${at}[${index}].text' must be a string.`, `${at}[${index}].text`);
    })
    .join('\n');
}

const choices: Readonly<Record<string, string>> = { auto: 'auto', any: 'required', none: 'none' };

function toolsOf(raw: Body): Body {
  const list = raw.tools ?? [];
  if (!Array.isArray(list)) throw bad("'tools' must be an array.", 'tools');
  if (list.length === 0) return {};
  const tools = list.map((tool: unknown, index) => {
    const at = `tools[${index}]`;
    if (!isRecord(tool)) throw bad(`'${at}' must be an object.`, at);
    if (tool.type != null && tool.type !== 'custom')
      throw unsupported(`'${at}': tools of type ${JSON.stringify(tool.type)} are`, `${at}.type`);
    const { name, description, input_schema: parameters } = tool;
    return { type: 'function', function: { name, description, parameters } };
  });
  const choice = raw.tool_choice ?? { type: 'auto' };
  if (!isRecord(choice) || typeof choice.type !== 'string')
    throw bad("'tool_choice' must be an object with a type.", 'tool_choice');
  const named = choice.type === 'tool';
  const told = named ? { type: 'function', function: { name: choice.name } } : choices[choice.type];
  if (told === undefined) throw bad("'tool_choice.type' must be auto, any, tool or none.", 'tool_choice.type');
  return { tools, tool_choice: told, parallel_tool_calls: choice.disable_parallel_tool_use !== true };
}
