/** `tools`, `tool_choice` and `parallel_tool_calls` of a chat request, and how a model without a form of its own is told of them. */
import type { RequestError } from '../actors/index.js';
import { callMarks } from './answer/delta.js';
import type { ChatMessage } from './chat-messages.js';
import { excerpt, gatewayError } from './errors.js';
import { isRecord } from './json.js';

export interface Tool {
  readonly name: string;
  readonly description?: string;
  /** JSON schema of the arguments. */
  readonly parameters: Readonly<Record<string, unknown>>;
}

export interface ToolUse {
  readonly tools: readonly Tool[];
  /** `auto`: as the model likes. `required`: at least one call and nothing else, of any of `tools`. */
  readonly choice: 'auto' | 'required';
  /** More than one call in an answer. */
  readonly parallel: boolean;
}

type Read<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: RequestError };

const mostTools = 128;
const nameForm = /^[A-Za-z0-9_-]{1,64}$/;
const anything: Tool['parameters'] = { type: 'object' };

/** Undefined: none may be called. A named choice leaves that one tool. */
export function readTools(body: Readonly<Record<string, unknown>>): Read<ToolUse | undefined> {
  const list = body.tools ?? [];
  if (!Array.isArray(list)) return bad("'tools' must be an array.", 'tools');
  if (list.length > mostTools) return bad(`'tools' must have at most ${mostTools} entries.`, 'tools');
  const tools: Tool[] = [];
  for (const [index, item] of list.entries()) {
    const read = readTool(item, `tools[${index}]`);
    if (!read.ok) return read;
    if (tools.some(({ name }) => name === read.value.name)) {
      return bad(`'tools' names ${excerpt(read.value.name)} twice.`, `tools[${index}].function.name`);
    }
    tools.push(read.value);
  }
  const parallel = body.parallel_tool_calls ?? true;
  if (typeof parallel !== 'boolean') return bad("'parallel_tool_calls' must be true or false.", 'parallel_tool_calls');
  return choose(tools, body.tool_choice ?? (tools.length > 0 ? 'auto' : 'none'), parallel);
}

function readTool(item: unknown, at: string): Read<Tool> {
  if (!isRecord(item)) return bad(`'${at}' must be an object.`, at);
  if (item.type !== 'function') {
    return {
      ok: false,
      error: gatewayError('GWY_UNSUPPORTED', [`'${at}.type': only function is supported.`], `${at}.type`),
    };
  }
  const told = item.function;
  if (!isRecord(told)) return bad(`'${at}.function' must be an object.`, `${at}.function`);
  const { name, description, parameters } = told;
  if (typeof name !== 'string' || !nameForm.test(name)) {
    return bad(`'${at}.function.name' must be 1 to 64 letters, digits, _ or -.`, `${at}.function.name`);
  }
  if (description !== undefined && description !== null && typeof description !== 'string') {
    return bad(`'${at}.function.description' must be a string.`, `${at}.function.description`);
  }
  if (parameters !== undefined && parameters !== null && !isRecord(parameters)) {
    return bad(`'${at}.function.parameters' must be a JSON schema.`, `${at}.function.parameters`);
  }
  return {
    ok: true,
    value: { name, ...(description ? { description } : {}), parameters: parameters ?? anything },
  };
}

function choose(tools: readonly Tool[], choice: unknown, parallel: boolean): Read<ToolUse | undefined> {
  if (choice === 'none') return { ok: true, value: undefined };
  if (choice === 'auto' || choice === 'required') {
    if (tools.length > 0) return { ok: true, value: { tools, choice, parallel } };
    return choice === 'auto' ? { ok: true, value: undefined } : bad(`'tool_choice' needs 'tools'.`, 'tool_choice');
  }
  const named =
    isRecord(choice) && choice.type === 'function' && isRecord(choice.function) ? choice.function.name : undefined;
  if (typeof named !== 'string') {
    return bad("'tool_choice' must be none, auto, required, or name a function.", 'tool_choice');
  }
  const only = tools.filter(({ name }) => name === named);
  if (only.length === 0) return bad(`'tool_choice' names ${excerpt(named)}, which is not in 'tools'.`, 'tool_choice');
  return { ok: true, value: { tools: only, choice: 'required', parallel: false } };
}

/** OpenAI's shape of the tools, which templates expect too. */
export const toolsJson = (tools: readonly Tool[]) => tools.map((tool) => ({ type: 'function', function: tool }));

const explained = (tools: readonly Tool[]): string =>
  `# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
${toolsJson(tools)
  .map((tool) => JSON.stringify(tool))
  .join('\n')}
</tools>

For each function call, return a json object with function name and arguments within ${callMarks.open}${callMarks.close} XML tags:
${callMarks.open}
{"name": <function-name>, "arguments": <args-json-object>}
${callMarks.close}`;

/** For a template that knows no tools: the form that most models saw in training (Hermes, Qwen), as plain messages. */
export function toolsAsText(messages: readonly ChatMessage[], tools: readonly Tool[]): readonly ChatMessage[] {
  const plain: ChatMessage[] = [];
  for (const { role, content, calls = [] } of messages) {
    if (role === 'tool') {
      const text = `<tool_response>\n${content}\n</tool_response>`;
      const last = plain.at(-1);
      // The results of parallel calls are one turn.
      if (last?.role === 'user' && last.content.endsWith('</tool_response>')) {
        plain[plain.length - 1] = { role: 'user', content: `${last.content}\n${text}` };
      } else plain.push({ role: 'user', content: text });
      continue;
    }
    const called = calls.map(
      (call) =>
        `${callMarks.open}\n{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}\n${callMarks.close}`,
    );
    plain.push({ role, content: [...(content === '' && called.length > 0 ? [] : [content]), ...called].join('\n') });
  }
  if (tools.length === 0) return plain;
  const first = plain[0];
  if (first?.role !== 'system') return [{ role: 'system', content: explained(tools) }, ...plain];
  return [{ role: 'system', content: `${first.content}\n\n${explained(tools)}` }, ...plain.slice(1)];
}

function bad(message: string, param: string): { readonly ok: false; readonly error: RequestError } {
  return { ok: false, error: gatewayError('GWY_BAD_VALUE', [message], param) };
}
