/** A client's JSON to a Prepared request: validation, chat template, tokens, defaults, and what the context allows. */
import type { AnswerShape, Api, Prepared, Preprocessor, RequestError, RoutingHints } from '../actors/index.js';
import { readMessages, wellFormed } from './chat-messages.js';
import { excerpt, gatewayError } from './errors.js';
import { grammarOf, type Output } from './grammar/output.js';
import { GrammarFault } from './grammar/rules.js';
import { defaultLimits, type GatewayLimits } from './limits.js';
import type { ModelRegistry, ServedModel } from './models.js';
import { readOutput } from './output-format.js';
import { type ChatBody, type CompletionBody, checkChat, checkCompletion } from './request-schema.js';
import { bodyHints, saltOf, wishesOf } from './routing-hints.js';
import { readTools, type ToolUse } from './tools.js';

type Result<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: RequestError };
type Outcome = ReturnType<Preprocessor['prepare']>;

const done = <T>(value: T): Result<T> => ({ ok: true, value });
const refused = (error: RequestError): { readonly ok: false; readonly error: RequestError } => ({ ok: false, error });
const bad = (message: string, param: string) => refused(gatewayError('GWY_BAD_VALUE', [message], param));

/** `report` hears of defects: a preparation that threw, which its client sees as a 500. */
export function createPreprocessor(
  models: ModelRegistry,
  limits: Partial<GatewayLimits> = {},
  report: (error: unknown) => void = () => undefined,
): Preprocessor {
  const bounds = { ...defaultLimits, ...limits };
  return {
    prepare(api: Api, body: unknown, hints: RoutingHints = noHints): Outcome {
      try {
        return api === 'chat' ? prepareChat(models, body, bounds, hints) : prepareCompletion(models, body, hints);
      } catch (error) {
        report(error);
        return refused(gatewayError('GWY_INTERNAL'));
      }
    },
  };
}

const noHints: RoutingHints = { wishes: {} };

function prepareChat(models: ModelRegistry, raw: unknown, limits: GatewayLimits, hints: RoutingHints): Outcome {
  const checked = checkChat(raw);
  if (!checked.ok) return checked;
  const body = checked.body;
  const model = models.get(body.model);
  if (model === undefined) return unknownModel(body.model);
  if ((body.top_logprobs ?? 0) > 0 && body.logprobs !== true) {
    return bad("'top_logprobs' needs 'logprobs' to be true.", 'top_logprobs');
  }
  const read = readMessages(body.messages, limits.messages);
  if (!read.ok) return read;
  const use = readTools(body);
  if (!use.ok) return use;
  const tools = use.value?.tools ?? [];
  const text = read.messages.map(({ content }) => content).join('');
  if (cannotFit(model, text)) return overContext(model, undefined, undefined, 'messages');
  if (tools.length > 0 && cannotFit(model, JSON.stringify(tools))) {
    return overContext(model, undefined, undefined, 'tools');
  }
  const prompt = model.template.tokenize(read.messages, tools);
  if (!prompt.ok) return prompt;
  const logprobs = body.logprobs === true ? body.top_logprobs || -1 : 0;
  const maxTokens = body.max_completion_tokens ?? body.max_tokens ?? undefined;
  const maxField = body.max_completion_tokens == null ? 'max_tokens' : 'max_completion_tokens';
  const { reasoning } = model.template;
  const grammar = readGrammar(model, body, use.value, reasoning === 'open');
  if (!grammar.ok) return grammar;
  const answer = {
    ...(use.value === undefined ? {} : { tools: tools.map(({ name }) => name) }),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
  return finish(model, body, prompt.tokens, {
    logprobs,
    maxTokens,
    maxField,
    promptField: 'messages',
    hints,
    answer,
    grammar: grammar.value,
  });
}

function prepareCompletion(models: ModelRegistry, raw: unknown, hints: RoutingHints): Outcome {
  const checked = checkCompletion(raw);
  if (!checked.ok) return checked;
  const body = checked.body;
  const model = models.get(body.model);
  if (model === undefined) return unknownModel(body.model);
  const prompt = readPrompt(model, body.prompt);
  if (!prompt.ok) return prompt;
  const logprobs = body.logprobs == null ? 0 : body.logprobs || -1;
  const maxTokens = body.max_tokens ?? undefined;
  const grammar = readGrammar(model, body, undefined, false);
  if (!grammar.ok) return grammar;
  return finish(model, body, prompt.value, {
    logprobs,
    maxTokens,
    maxField: 'max_tokens',
    promptField: 'prompt',
    hints,
    grammar: grammar.value,
  });
}

/** One prompt; the route has split a list of several. */
function readPrompt(model: ServedModel, prompt: CompletionBody['prompt']): Result<Uint32Array> {
  const only = Array.isArray(prompt) && typeof prompt[0] !== 'number' ? prompt[0] : prompt;
  if (Array.isArray(prompt) && typeof prompt[0] !== 'number' && prompt.length > 1) {
    return bad("'prompt' holds several prompts.", 'prompt');
  }
  if (typeof only === 'string') {
    if (cannotFit(model, only)) return overContext(model, undefined, undefined, 'prompt');
    try {
      return done(model.vocabulary.tokenize(wellFormed(only), { special: true, addBos: true }));
    } catch {
      return refused(gatewayError('GWY_TOKENIZER'));
    }
  }
  const tokens = only as readonly number[];
  if (tokens.length >= model.contextTokens) return overContext(model, tokens.length, undefined, 'prompt');
  const size = model.vocabulary.size;
  if (tokens.some((token) => token >= size)) {
    return bad(`'prompt' holds a token id outside the vocabulary of ${size}.`, 'prompt');
  }
  return done(Uint32Array.from(tokens));
}

/** What the answer must follow, from whichever field says so. */
function readGrammar(
  model: ServedModel,
  body: Readonly<Record<string, unknown>>,
  use: ToolUse | undefined,
  thinks: boolean,
): Result<string | undefined> {
  const wish = readOutput(body);
  if (!wish.ok) return wish;
  const forced = use?.choice === 'required';
  if (forced && wish.value !== undefined) {
    return bad(`'${wish.value.field}' and a 'tool_choice' that calls cannot both be followed.`, wish.value.field);
  }
  const field = forced ? 'tool_choice' : (wish.value?.field ?? '');
  const output: Output | undefined = forced
    ? { kind: 'calls', tools: use.tools, parallel: use.parallel }
    : wish.value?.output;
  if (output === undefined) return done(undefined);
  const { grammarFault } = model.vocabulary;
  if (grammarFault === undefined)
    return refused(gatewayError('GWY_UNSUPPORTED', [`'${field}' is not supported by this model.`], field));
  try {
    const grammar = grammarOf(output, thinks);
    const fault = grammarFault(grammar);
    return fault === '' ? done(grammar) : bad(`'${field}' cannot be followed: ${fault}.`, field);
  } catch (error) {
    if (!(error instanceof GrammarFault)) throw error;
    const where = error.path === '' ? '' : ` at ${excerpt(error.path.replace(/^\./, ''))}`;
    return bad(`'${field}'${where} ${error.message}.`, field);
  }
}

interface Particulars {
  readonly logprobs: number;
  readonly maxTokens: number | undefined;
  readonly maxField: string;
  readonly promptField: string;
  readonly hints: RoutingHints;
  readonly answer?: AnswerShape;
  readonly grammar: string | undefined;
}

function finish(model: ServedModel, body: ChatBody | CompletionBody, prompt: Uint32Array, more: Particulars): Outcome {
  if (prompt.length === 0) return bad(`'${more.promptField}' must not be empty.`, more.promptField);
  const room = model.contextTokens - prompt.length;
  if (room < 1) return overContext(model, prompt.length, undefined, more.promptField);
  if (more.maxTokens !== undefined && more.maxTokens > room) {
    return overContext(model, prompt.length, more.maxTokens, more.maxField);
  }
  const maxTokens = more.maxTokens ?? room;
  const minTokens = body.min_tokens ?? 0;
  if (minTokens > maxTokens) return bad(`'min_tokens' must be at most '${more.maxField}'.`, 'min_tokens');
  const logitBias = Object.entries(body.logit_bias ?? {}).map(([id, bias]): [number, number] => [Number(id), bias]);
  const outside = logitBias.find(([id]) => id >= model.vocabulary.size);
  if (outside !== undefined) {
    return bad(`'logit_bias' names a token id outside the vocabulary of ${model.vocabulary.size}.`, 'logit_bias');
  }
  const asked = bodyHints(body.nvext, body.prompt_cache_key ?? undefined);
  if (!asked.ok) return asked;
  const wishes = wishesOf(asked.value.wishes, more.hints.wishes);
  const cacheSalt = saltOf(asked.value.cacheSalt ?? body.cache_salt ?? undefined, more.hints.cacheSalt);
  if (cacheSalt === undefined) return bad("'cache_salt' and the tenant are too long together.", 'cache_salt');
  const stop = body.stop ?? [];
  const prepared: Prepared = {
    model: model.id,
    prompt,
    n: body.n ?? 1,
    sampling: {
      temperature: body.temperature ?? 1,
      topK: Math.max(0, body.top_k ?? 0),
      topP: body.top_p ?? 1,
      minP: body.min_p ?? 0,
      frequencyPenalty: body.frequency_penalty ?? 0,
      presencePenalty: body.presence_penalty ?? 0,
      repetitionPenalty: body.repetition_penalty ?? 1,
      logitBias,
      seed: body.seed == null ? undefined : foldSeed(body.seed),
      ...(more.grammar === undefined ? {} : { grammar: more.grammar }),
    },
    maxTokens,
    minTokens,
    ignoreEos: body.ignore_eos === true,
    logprobs: more.logprobs,
    stop: typeof stop === 'string' ? [stop] : stop,
    cacheSalt,
    ...(Object.keys(wishes).length === 0 ? {} : { wishes }),
    ...(asked.value.dryRun ? { dryRun: true } : {}),
    ...(more.answer !== undefined && Object.keys(more.answer).length > 0 ? { answer: more.answer } : {}),
  };
  return { ok: true, prepared };
}

/** Any integer of JSON into the 53 bits a worker takes; negative ones are somebody's seed too. */
function foldSeed(seed: number): number {
  const range = 2 ** 53;
  const folded = seed % range;
  return folded < 0 ? folded + range : folded + 0;
}

/**
 * True when a text is certainly too long, found without tokenizing all of it: the beginning alone overflows, or no token
 * is long enough. Tokenizing megabytes would hold up everybody else's tokens.
 */
function cannotFit(model: ServedModel, text: string): boolean {
  const longestToken = 512;
  if (text.length > model.contextTokens * longestToken) return true;
  const sample = model.contextTokens * 8;
  if (text.length <= sample) return false;
  const begin = wellFormed(text.slice(0, sample));
  return model.vocabulary.tokenize(begin, { special: true, addBos: false }).length > model.contextTokens + 16;
}

function unknownModel(id: string) {
  return refused(gatewayError('GWY_MODEL_UNKNOWN', [excerpt(id)], 'model'));
}

function overContext(model: ServedModel, prompt: number | undefined, answer: number | undefined, param: string) {
  const asked =
    prompt === undefined
      ? 'the prompt is longer'
      : answer === undefined
        ? `the prompt has ${prompt} tokens, and at least one is needed for the answer`
        : `you asked for ${prompt + answer}: ${prompt} of the prompt and ${answer} of the answer`;
  const text = `This model's context is ${model.contextTokens} tokens; ${asked}.`;
  return refused(gatewayError('GWY_CONTEXT', [text], param));
}
