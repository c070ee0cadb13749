/**
 * The fields that say what an answer must look like: OpenAI's `response_format`, and what vLLM's and SGLang's clients send for the same.
 * At most one of them.
 */
import type { RequestError } from '../actors/index.js';
import { gatewayError } from './errors.js';
import type { Output } from './grammar/output.js';
import { isRecord } from './json.js';

/** `field`: what the request called it, for errors. */
export interface OutputWish {
  readonly field: string;
  readonly output: Output;
}

type Read =
  | { readonly ok: true; readonly value: OutputWish | undefined }
  | { readonly ok: false; readonly error: RequestError };

const mostOptions = 1_000;

/** [field, what its value asks for; a string says what it must be]. */
const fields: readonly (readonly [string, (value: unknown) => Output | undefined | string])[] = [
  ['response_format', responseFormat],
  ['structured_outputs', structured],
  ['guided_json', jsonOf],
  ['guided_regex', regexOf],
  ['guided_choice', choiceOf],
  ['guided_grammar', grammarIn],
  ['grammar', grammarIn],
  ['ebnf', grammarIn],
  ['regex', regexOf],
  ['json_schema', jsonOf],
];

/** Undefined: any text. */
export function readOutput(body: Readonly<Record<string, unknown>>): Read {
  let found: OutputWish | undefined;
  for (const [field, read] of fields) {
    const value = Object.hasOwn(body, field) ? body[field] : undefined;
    if (value === undefined || value === null) continue;
    const output = read(value);
    if (typeof output === 'string') return bad(`'${field}' must be ${output}.`, field);
    if (output === undefined) continue;
    if (found !== undefined) return bad(`'${field}' and '${found.field}' cannot both be given.`, field);
    found = { field, output };
  }
  return { ok: true, value: found };
}

function responseFormat(value: unknown): Output | undefined | string {
  const expected = 'an object of type text, json_object or json_schema';
  if (!isRecord(value)) return expected;
  switch (value.type) {
    case 'text':
      return undefined;
    case 'json_object':
      // vLLM and llama.cpp take a schema here too.
      return isRecord(value.schema) ? { kind: 'schema', schema: value.schema, enforce: 'possible' } : { kind: 'json' };
    case 'json_schema': {
      const told = value.json_schema;
      if (!isRecord(told) || !isRecord(told.schema)) return `${expected}, with json_schema.schema`;
      return { kind: 'schema', schema: told.schema, enforce: told.strict === true ? 'all' : 'possible' };
    }
    case 'regex':
      return regexOf(value.pattern);
    case 'grammar':
      return grammarIn(value.grammar);
    default:
      return expected;
  }
}

function structured(value: unknown): Output | undefined | string {
  if (!isRecord(value)) return 'an object';
  const given = Object.entries(value).filter(([name, of]) => named.has(name) && of !== null && of !== false);
  const [only, ...more] = given;
  if (only === undefined || more.length > 0)
    return 'an object with one of json, json_object, regex, choice and grammar';
  return (named.get(only[0]) as (of: unknown) => Output | string)(only[1]);
}

const named = new Map<string, (value: unknown) => Output | string>([
  ['json', jsonOf],
  ['json_object', () => ({ kind: 'json' })],
  ['regex', regexOf],
  ['choice', choiceOf],
  ['grammar', grammarIn],
]);

function jsonOf(value: unknown): Output | string {
  const schema = typeof value === 'string' ? parsed(value) : value;
  return isRecord(schema) ? { kind: 'schema', schema, enforce: 'possible' } : 'a JSON schema';
}

function regexOf(value: unknown): Output | string {
  return typeof value === 'string' && value !== '' ? { kind: 'regex', pattern: value } : 'a regular expression';
}

function choiceOf(value: unknown): Output | string {
  const texts = Array.isArray(value) && value.length > 0 && value.length <= mostOptions && value.every(isText);
  return texts ? { kind: 'choice', options: value as string[] } : `an array of 1 to ${mostOptions} non-empty strings`;
}

function grammarIn(value: unknown): Output | string {
  return typeof value === 'string' && value !== '' ? { kind: 'grammar', text: value } : 'a grammar in GBNF';
}

const isText = (value: unknown) => typeof value === 'string' && value !== '';

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function bad(message: string, param: string): Read {
  return { ok: false, error: gatewayError('GWY_BAD_VALUE', [message], param) };
}
