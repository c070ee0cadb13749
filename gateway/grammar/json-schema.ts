/**
 * JSON schemas as grammars: what follows the grammar is valid JSON and fits the schema. Objects are closed where they name their properties,
 * and write them in that order. What a grammar cannot say is refused, or left out if the caller says so.
 */
import { isRecord } from '../json.js';
import { arrayOf, character, integerRange, objectOf, plain, space, value } from './json.js';
import { regexGrammar } from './regex.js';
import { GrammarFault, literal, mostRepeats, type Rules, repeat } from './rules.js';

type Schema = Readonly<Record<string, unknown>>;

/** `all`: whatever cannot be enforced is refused. `possible`: it is left out. */
export type Enforce = 'all' | 'possible';

const mostDepth = 64;
const mostProperties = 1_000;
/** Keywords that constrain and have no form in a grammar, by the types that they concern. */
const beyond: Readonly<Record<string, readonly string[]>> = {
  any: ['not', 'if', 'then', 'else', 'dependentRequired', 'dependentSchemas', '$dynamicRef'],
  object: ['patternProperties', 'propertyNames', 'minProperties', 'maxProperties', 'unevaluatedProperties'],
  array: ['uniqueItems', 'contains', 'minContains', 'maxContains', 'unevaluatedItems'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  integer: ['multipleOf'],
  string: ['contentEncoding', 'contentMediaType', 'contentSchema'],
};
const days = '"0" [1-9] | "1" [0-9] | "2" [0-8]';
/** No 29 February: whether there is one a grammar cannot count. */
const date =
  '[0-9]{4} "-" (("0" [13578] | "1" [02]) "-" (' +
  `${days} | "29" | "3" [01]) | ("0" [469] | "11") "-" (${days} | "29" | "30") | "02-" (${days}))`;
const time =
  '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])';
const hex = '[0-9a-fA-F]';
const formats: Readonly<Record<string, string>> = {
  date,
  time,
  'date-time': `${date} "T" ${time}`,
  uuid: `${hex}{8} "-" ${hex}{4} "-" ${hex}{4} "-" ${hex}{4} "-" ${hex}{12}`,
};

/** The name of a rule for one value of the schema. Throws GrammarFault. */
export function schemaRule(rules: Rules, schema: unknown, enforce: Enforce): string {
  return new Converter(rules, schema, enforce).visit(schema, '', 0);
}

class Converter {
  readonly #refs = new Map<string, string>();

  constructor(
    private readonly rules: Rules,
    private readonly root: unknown,
    private readonly enforce: Enforce,
  ) {}

  visit(schema: unknown, path: string, depth: number): string {
    if (depth > mostDepth) throw new GrammarFault(path, `is nested deeper than ${mostDepth} levels`);
    if (schema === true) return value(this.rules);
    if (!isRecord(schema)) throw new GrammarFault(path, 'is no schema that anything fits');
    this.#bounds(schema, 'any', path);
    if (typeof schema.$ref === 'string') return this.#ref(schema.$ref, path, depth);
    if (Object.hasOwn(schema, 'const')) return this.#literals([schema.const], path);
    if (schema.enum !== undefined) return this.#literals(schema.enum, path);
    for (const word of ['anyOf', 'oneOf'] as const) {
      const options = schema[word];
      if (options === undefined) continue;
      if (!Array.isArray(options) || options.length === 0)
        throw new GrammarFault(`${path}.${word}`, 'is not a list of schemas');
      // What stands beside the options holds for each of them.
      const { [word]: _, ...common } = schema;
      return this.#any(
        options.map((option, at) => this.visit(merged(common, option), `${path}.${word}[${at}]`, depth + 1)),
      );
    }
    if (schema.allOf !== undefined) return this.visit(this.#all(schema, path), path, depth + 1);
    const types = Array.isArray(schema.type) ? schema.type : [schema.type ?? implied(schema)];
    return this.#any(types.map((type) => this.#typed(type, schema, path, depth)));
  }

  #typed(type: unknown, schema: Schema, path: string, depth: number): string {
    switch (type) {
      case undefined:
        return value(this.rules);
      case 'object':
        return this.#object(schema, path, depth);
      case 'array':
        return this.#array(schema, path, depth);
      case 'string':
        return this.#string(schema, path);
      case 'integer':
        return this.#integer(schema, path);
      case 'number':
      case 'boolean':
      case 'null':
        this.#bounds(schema, type, path);
        return (plain[type] as (rules: Rules) => string)(this.rules);
      default:
        throw new GrammarFault(`${path}.type`, 'is no type of JSON');
    }
  }

  #object(schema: Schema, path: string, depth: number): string {
    this.#bounds(schema, 'object', path);
    const properties = schema.properties ?? {};
    if (!isRecord(properties)) throw new GrammarFault(`${path}.properties`, 'is not an object');
    const names = Object.keys(properties);
    if (names.length > mostProperties)
      throw new GrammarFault(`${path}.properties`, `has more than ${mostProperties} entries`);
    const required = new Set(Array.isArray(schema.required) ? schema.required : []);
    const unknown = [...required].find((name) => typeof name !== 'string' || !Object.hasOwn(properties, name));
    if (unknown !== undefined)
      throw new GrammarFault(`${path}.required`, `names ${JSON.stringify(unknown)}, which has no schema`);
    const more = schema.additionalProperties ?? names.length === 0;
    const rest = more === false ? undefined : this.visit(more, `${path}.additionalProperties`, depth + 1);
    if (names.length === 0) {
      const ws = space(this.rules);
      return rest === undefined ? this.rules.named('object', `"{" ${ws} "}"`) : objectOf(this.rules, rest);
    }
    const pairs = names.map((name) => {
      const rule = this.visit(properties[name], `${path}.properties.${name}`, depth + 1);
      const body = `${literal(JSON.stringify(name))} ":" ${space(this.rules)} ${rule} ${space(this.rules)}`;
      return { rule: this.rules.named(`${name}-kv`, body), required: required.has(name) };
    });
    return this.rules.named('object', `"{" ${space(this.rules)} ${this.#inOrder(pairs, rest)} "}"`);
  }

  /** From the back: after the first property each has a comma before it, and any that is not required may be left out. */
  #inOrder(pairs: readonly { readonly rule: string; readonly required: boolean }[], rest: string | undefined): string {
    const ws = space(this.rules);
    const extra =
      rest === undefined
        ? undefined
        : this.rules.named(
            'more-kv',
            `${(plain.string as (rules: Rules) => string)(this.rules)} ":" ${ws} ${rest} ${ws}`,
          );
    let later = extra === undefined ? '' : `("," ${ws} ${extra})*`;
    let opening = extra === undefined ? '' : `(${extra} ${later})?`;
    for (const { rule, required } of [...pairs].reverse()) {
      const tail = later === '' ? '' : ` ${this.rules.named('then', later)}`;
      const skip = opening === '' ? '""' : this.rules.named('first', opening);
      opening = required ? `${rule}${tail}` : `(${rule}${tail} | ${skip})`;
      later = required ? `"," ${ws} ${rule}${tail}` : `("," ${ws} ${rule})?${tail}`;
    }
    return opening;
  }

  #array(schema: Schema, path: string, depth: number): string {
    this.#bounds(schema, 'array', path);
    const ws = space(this.rules);
    const fixed = schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : undefined);
    if (Array.isArray(fixed)) {
      const items = fixed.map((item, at) => this.visit(item, `${path}.prefixItems[${at}]`, depth + 1));
      return this.rules.named('tuple', `"[" ${ws} ${items.map((item) => `${item} ${ws}`).join(`"," ${ws} `)} "]"`);
    }
    if (schema.items === false) return this.rules.named('array', `"[" ${ws} "]"`);
    const item = this.visit(schema.items ?? true, `${path}.items`, depth + 1);
    const min = this.#count(schema.minItems, 0, `${path}.minItems`);
    const max = this.#count(schema.maxItems, Number.POSITIVE_INFINITY, `${path}.maxItems`);
    if (min > max) throw new GrammarFault(path, 'allows no array');
    return arrayOf(this.rules, item, min, max);
  }

  #string(schema: Schema, path: string): string {
    this.#bounds(schema, 'string', path);
    const { pattern, format } = schema;
    if (typeof pattern === 'string') {
      // A pattern of JSON schema may match anywhere: without anchors anything may stand around it.
      const around = `${this.rules.named('char', character)}*`;
      const before = pattern.startsWith('^') ? '' : `${around} `;
      const after = pattern.endsWith('$') && !pattern.endsWith('\\$') ? '' : ` ${around}`;
      if (schema.minLength !== undefined || schema.maxLength !== undefined) this.#beyond(path, 'pattern with a length');
      const body = regexGrammar(pattern, `${path}.pattern`, 'json');
      return this.rules.named('text', `"\\"" ${before}(${body})${after} "\\""`);
    }
    const form = typeof format === 'string' ? formats[format] : undefined;
    if (form !== undefined) return this.rules.named(format as string, `"\\"" ${form} "\\""`);
    if (format !== undefined) this.#beyond(path, `format ${JSON.stringify(format)}`);
    if (schema.minLength === undefined && schema.maxLength === undefined) {
      return (plain.string as (rules: Rules) => string)(this.rules);
    }
    const min = this.#count(schema.minLength, 0, `${path}.minLength`);
    const max = this.#count(schema.maxLength, Number.POSITIVE_INFINITY, `${path}.maxLength`);
    if (min > max) throw new GrammarFault(path, 'allows no string');
    return this.rules.named('text', `"\\"" ${repeat(this.rules.named('char', character), min, max)} "\\""`);
  }

  #integer(schema: Schema, path: string): string {
    this.#bounds(schema, 'integer', path);
    const bound = (word: string, exclusive: string, none: number, step: number): number => {
      const at = schema[word];
      const beyondAt = schema[exclusive];
      for (const [name, given] of [
        [word, at],
        [exclusive, beyondAt],
      ] as const) {
        if (given !== undefined && !(typeof given === 'number' && Math.abs(given) < 1e15)) {
          throw new GrammarFault(`${path}.${name}`, 'is no number of at most 15 digits');
        }
      }
      const closest = step > 0 ? Math.ceil : Math.floor;
      const inclusive = at === undefined ? none : closest(at as number);
      if (beyondAt === undefined) return inclusive;
      const next = closest(beyondAt as number);
      const strict = next === beyondAt ? next + step : next;
      return step > 0 ? Math.max(inclusive, strict) : Math.min(inclusive, strict);
    };
    const min = bound('minimum', 'exclusiveMinimum', Number.NEGATIVE_INFINITY, 1);
    const max = bound('maximum', 'exclusiveMaximum', Number.POSITIVE_INFINITY, -1);
    if (min === Number.NEGATIVE_INFINITY && max === Number.POSITIVE_INFINITY) {
      return (plain.integer as (rules: Rules) => string)(this.rules);
    }
    return integerRange(this.rules, min, max, path);
  }

  #literals(list: unknown, path: string): string {
    if (!Array.isArray(list) || list.length === 0) throw new GrammarFault(`${path}.enum`, 'is not a list of values');
    return this.rules.named('one-of', list.map((item) => literal(JSON.stringify(item))).join(' | '));
  }

  #ref(ref: string, path: string, depth: number): string {
    const known = this.#refs.get(ref);
    if (known !== undefined) return known;
    const target = resolved(this.root, ref);
    if (target === undefined)
      throw new GrammarFault(`${path}.$ref`, `points to ${JSON.stringify(ref)}, which is not there`);
    const name = this.rules.fresh(ref.split('/').at(-1) || 'ref');
    this.#refs.set(ref, name);
    const body = this.visit(target, ref, depth + 1);
    if (body === name) throw new GrammarFault(`${path}.$ref`, 'points to itself');
    this.rules.define(name, body);
    return name;
  }

  /** Objects whose parts hold together: their properties and what they require are one. */
  #all(schema: Schema, path: string): Schema {
    const { allOf, ...rest } = schema;
    if (!Array.isArray(allOf)) throw new GrammarFault(`${path}.allOf`, 'is not a list of schemas');
    return allOf.reduce<Schema>((whole, part, at) => {
      const ref = isRecord(part) && typeof part.$ref === 'string' ? part.$ref : undefined;
      const target = ref === undefined ? part : resolved(this.root, ref);
      if (!isRecord(target)) throw new GrammarFault(`${path}.allOf[${at}]`, 'is no schema');
      const inner = target.allOf === undefined ? target : this.#all(target, `${path}.allOf[${at}]`);
      return merged(whole, inner) as Schema;
    }, rest);
  }

  #any(options: readonly string[]): string {
    return options.length === 1 ? (options[0] as string) : this.rules.named('any', options.join(' | '));
  }

  #count(given: unknown, none: number, path: string): number {
    if (given === undefined) return none;
    if (typeof given !== 'number' || !Number.isInteger(given) || given < 0) throw new GrammarFault(path, 'is no count');
    if (given <= mostRepeats) return given;
    this.#beyond(path, `a count above ${mostRepeats}`);
    return none;
  }

  #bounds(schema: Schema, type: string, path: string): void {
    for (const word of beyond[type] ?? []) {
      if (schema[word] !== undefined && schema[word] !== false) this.#beyond(`${path}.${word}`, word);
    }
  }

  #beyond(path: string, what: string): void {
    if (this.enforce === 'all') throw new GrammarFault(path, `uses ${what}, which cannot be enforced`);
  }
}

/** A schema without a type that speaks of one. */
function implied(schema: Schema): string | undefined {
  if (schema.properties !== undefined || schema.additionalProperties !== undefined) return 'object';
  if (schema.items !== undefined || schema.prefixItems !== undefined) return 'array';
  return schema.pattern !== undefined || schema.format !== undefined ? 'string' : undefined;
}

function merged(a: Schema, b: unknown): unknown {
  if (!isRecord(b)) return b;
  const both = { ...a, ...b };
  if (isRecord(a.properties) && isRecord(b.properties)) both.properties = { ...a.properties, ...b.properties };
  if (Array.isArray(a.required) && Array.isArray(b.required))
    both.required = [...new Set([...a.required, ...b.required])];
  return both;
}

/** `#/a/b` in the whole schema. */
function resolved(root: unknown, ref: string): unknown {
  if (ref !== '#' && !ref.startsWith('#/')) return undefined;
  let at: unknown = root;
  for (const part of ref.split('/').slice(1)) {
    const name = unescaped(part).replaceAll('~1', '/').replaceAll('~0', '~');
    if ((!isRecord(at) && !Array.isArray(at)) || !Object.hasOwn(at, name)) return undefined;
    at = (at as Record<string, unknown>)[name];
  }
  return at;
}

function unescaped(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
