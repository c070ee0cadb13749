/**
 * The fields of a generation request, each with what it expects in words: the schema decides, the words go into the 400.
 * Every optional field may be null, as OpenAI's clients send it. Unknown fields are ignored; known ones that are not
 * served are refused, so that nothing is silently left out.
 */
import Type, { type Static, type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Api, RequestError } from '../actors/index.js';
import { gatewayError } from './errors.js';
import { isRecord } from './json.js';
import { wantsDryRun } from './routing-hints.js';

const nullable = <T extends TSchema>(schema: T, expects: string) =>
  Type.Optional(Type.Union([Type.Null(), schema], { expects }));
const number = (minimum: number, maximum: number) =>
  nullable(Type.Number({ minimum, maximum }), `a number from ${minimum} to ${maximum}`);
const positive = (maximum: number) =>
  nullable(Type.Number({ exclusiveMinimum: 0, maximum }), `a number above 0 and up to ${maximum}`);
const integer = (minimum: number, maximum: number) =>
  nullable(Type.Integer({ minimum, maximum }), `an integer from ${minimum} to ${maximum}`);
const flag = () => nullable(Type.Boolean(), 'true or false');

const most = 2 ** 31 - 1;
const stopText = Type.String({ minLength: 1, maxLength: 1024 });
const token = Type.Integer({ minimum: 0, maximum: most });

const shared = {
  model: Type.String({ minLength: 1, maxLength: 256, expects: 'the id of a model' }),
  stream: flag(),
  stream_options: nullable(
    Type.Object({ include_usage: Type.Optional(Type.Union([Type.Null(), Type.Boolean()])) }),
    'an object; include_usage is true or false',
  ),
  temperature: number(0, 2),
  top_p: positive(1),
  top_k: integer(-1, most),
  min_p: number(0, 1),
  frequency_penalty: number(-2, 2),
  presence_penalty: number(-2, 2),
  repetition_penalty: positive(2),
  logit_bias: nullable(
    Type.Record(Type.String({ pattern: '^(0|[1-9][0-9]{0,9})$' }), Type.Number({ minimum: -100, maximum: 100 }), {
      additionalProperties: false,
      maxProperties: 1024,
    }),
    'an object of at most 1024 token ids, each with a number from -100 to 100',
  ),
  seed: nullable(Type.Integer(), 'an integer'),
  max_tokens: integer(1, most),
  min_tokens: integer(0, most),
  ignore_eos: flag(),
  stop: nullable(
    Type.Union([stopText, Type.Array(stopText, { maxItems: 32 })]),
    'a non-empty string, or an array of at most 32 of them, each of at most 1024 characters',
  ),
  n: integer(1, 128),
  user: nullable(Type.String({ maxLength: 1024 }), 'a string of at most 1024 characters'),
  metadata: nullable(Type.Record(Type.String(), Type.Unknown()), 'an object'),
  prompt_cache_key: nullable(
    Type.String({ pattern: '^[\\x21-\\x7e]{1,256}$' }),
    'a string of 1 to 256 visible characters',
  ),
  /** Looked at by itself: it has fields within fields. */
  nvext: Type.Optional(Type.Unknown()),
  cache_salt: nullable(Type.String({ minLength: 1, maxLength: 256 }), 'a non-empty string of at most 256 characters'),
};

const chatFields = {
  ...shared,
  messages: Type.Array(Type.Unknown(), { minItems: 1, expects: 'a non-empty array of messages' }),
  max_completion_tokens: integer(1, most),
  logprobs: flag(),
  top_logprobs: integer(0, 20),
  /** Read by tools.ts, which says where in them a fault is. */
  tools: Type.Optional(Type.Unknown()),
  tool_choice: Type.Optional(Type.Unknown()),
  parallel_tool_calls: Type.Optional(Type.Unknown()),
};

const completionFields = {
  ...shared,
  prompt: Type.Union(
    [
      Type.String(),
      Type.Array(Type.String(), { minItems: 1 }),
      Type.Array(token, { minItems: 1 }),
      Type.Array(Type.Array(token, { minItems: 1 }), { minItems: 1 }),
    ],
    { expects: 'a string, an array of strings, a non-empty array of token ids, or an array of those' },
  ),
  logprobs: integer(0, 5),
  best_of: integer(1, 128),
};

const Chat = Type.Object(chatFields);
const Completion = Type.Object(completionFields);
export type ChatBody = Static<typeof Chat>;
export type CompletionBody = Static<typeof Completion>;
type Fields = Record<string, TSchema & { readonly expects?: string }>;

const compileFields = (fields: Fields) =>
  Object.entries(fields).map(([name, schema]) => ({
    name,
    expects: schema.expects ?? 'valid',
    required: !Type.IsOptional(schema),
    check: Compile(schema),
  }));

const chat = { whole: Compile(Chat), fields: compileFields(chatFields) };
const completion = { whole: Compile(Completion), fields: compileFields(completionFields) };

const isEmpty = (value: unknown) => value === undefined || value === null || value === false;
const isEmptyList = (value: unknown) => isEmpty(value) || (Array.isArray(value) && value.length === 0);

/** Features of the API that would change the answer if they were ignored: [field, is this value harmless]. */
const unsupported: readonly (readonly [string, (value: unknown, body: Record<string, unknown>) => boolean])[] = [
  ['functions', isEmptyList],
  ['function_call', (value) => isEmpty(value) || value === 'none' || value === 'auto'],
  ['modalities', (value) => isEmptyList(value) || (Array.isArray(value) && value.every((item) => item === 'text'))],
  ['audio', isEmpty],
  ['prediction', isEmpty],
  ['web_search_options', isEmpty],
  ['continue_final_message', isEmpty],
  ['chat_template', isEmpty],
  ['echo', isEmpty],
  ['suffix', (value) => isEmpty(value) || value === ''],
  ['best_of', (value, body) => isEmpty(value) || value === (body.n ?? 1)],
  ['use_beam_search', isEmpty],
  ['prompt_logprobs', isEmpty],
  ['prompt_embeds', isEmpty],
  ['stop_token_ids', isEmptyList],
  ['bad_words', isEmptyList],
  ['allowed_token_ids', isEmpty],
];

export type Checked<T> = { readonly ok: true; readonly body: T } | { readonly ok: false; readonly error: RequestError };

export function checkChat(body: unknown): Checked<ChatBody> {
  return chat.whole.Check(body) ? supported(body, body) : { ok: false, error: firstFault(body, chat.fields) };
}

export function checkCompletion(body: unknown): Checked<CompletionBody> {
  return completion.whole.Check(body)
    ? supported(body, body)
    : { ok: false, error: firstFault(body, completion.fields) };
}

function firstFault(body: unknown, fields: ReturnType<typeof compileFields>): RequestError {
  if (!isRecord(body)) return gatewayError('GWY_BODY_SHAPE');
  for (const { name, expects, required, check } of fields) {
    const value = Object.hasOwn(body, name) ? body[name] : undefined;
    if (value === undefined) {
      if (required) return gatewayError('GWY_BAD_VALUE', [`'${name}' is required: ${expects}.`], name);
    } else if (!check.Check(value)) {
      return gatewayError('GWY_BAD_VALUE', [`'${name}' must be ${expects}.`], name);
    }
  }
  return gatewayError('GWY_BODY_SHAPE');
}

function supported<T>(body: T, fields: Record<string, unknown>): Checked<T> {
  for (const [name, harmless] of unsupported) {
    const value = fields[name];
    if (value !== undefined && !harmless(value, fields)) {
      return { ok: false, error: gatewayError('GWY_UNSUPPORTED', [`'${name}' is not supported.`], name) };
    }
  }
  return { ok: true, body };
}

/** What must be known before the body is checked: how to answer, and how many requests it stands for. Never throws. */
export interface Shape {
  readonly stream: boolean;
  readonly includeUsage: boolean;
  /** One body per prompt. */
  readonly bodies: readonly unknown[];
}

/** Splits a completions body with several prompts into one body per prompt; any other body stays as it is. */
export function shapeOf(api: Api, body: unknown, maxChoices: number): Shape | RequestError {
  if (!isRecord(body)) return gatewayError('GWY_BODY_SHAPE');
  const options = body.stream_options;
  const stream = body.stream === true;
  const includeUsage = stream && isRecord(options) && options.include_usage === true;
  const prompts = body.prompt;
  // A list of mixed kinds stays whole, so that validation sees what is wrong with it.
  const several =
    api === 'completion' &&
    Array.isArray(prompts) &&
    prompts.length > 1 &&
    (prompts.every((prompt) => typeof prompt === 'string') || prompts.every((prompt) => Array.isArray(prompt)));
  if (!several) return { stream, includeUsage, bodies: [body] };
  if (wantsDryRun(body)) {
    return gatewayError('GWY_BAD_VALUE', ['A dry run takes one prompt.'], 'nvext.annotations');
  }
  const n = typeof body.n === 'number' ? body.n : 1;
  if (prompts.length * n > maxChoices) {
    return gatewayError('GWY_BAD_VALUE', [`'prompt' times 'n' must be at most ${maxChoices}.`], 'prompt');
  }
  return { stream, includeUsage, bodies: prompts.map((prompt: unknown) => ({ ...body, prompt: [prompt] })) };
}
