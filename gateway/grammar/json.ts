/** JSON itself as rules, and numbers of a range. */
import { GrammarFault, type Rules, repeat } from './rules.js';

/** Blanks between the parts of a value: bounded, or a small model writes nothing else. */
const blanks = '(" " | "\\n" [ \\t]{0,20})?';
const hexDigit = '[0-9a-fA-F]';
/** One character of a string: what JSON allows, and no half of a surrogate pair. */
export const character =
  '([^"\\\\\\x00-\\x1f\\x7f] | "\\\\" (["\\\\/bfnrt] | "u" (' +
  `[0-9a-cA-CefEF] ${hexDigit}{3} | [dD] [0-7] ${hexDigit}{2} | [dD] [89abAB] ${hexDigit}{2} "\\\\u" [dD] [c-fC-F] ${hexDigit}{2})))`;

export const space = (rules: Rules): string => rules.named('space', blanks);

export const plain: Readonly<Record<string, (rules: Rules) => string>> = {
  string: (rules) => rules.named('string', `"\\"" ${rules.named('char', character)}* "\\""`),
  integer: (rules) => rules.named('integer', '"-"? ("0" | [1-9] [0-9]{0,15})'),
  number: (rules) =>
    rules.named('number', '"-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?'),
  boolean: (rules) => rules.named('boolean', '"true" | "false"'),
  null: (rules) => rules.named('null', '"null"'),
  object: (rules) => objectOf(rules, value(rules)),
  array: (rules) => arrayOf(rules, value(rules), 0, Number.POSITIVE_INFINITY),
};

const values = new WeakMap<Rules, string>();

/** Any JSON value. */
export function value(rules: Rules): string {
  const known = values.get(rules);
  if (known !== undefined) return known;
  const name = rules.fresh('value');
  values.set(rules, name);
  rules.define(
    name,
    Object.values(plain)
      .map((make) => make(rules))
      .join(' | '),
  );
  return name;
}

/** An object with any keys, each with such a value. */
export function objectOf(rules: Rules, item: string): string {
  const ws = space(rules);
  const pair = rules.named('pair', `${(plain.string as (rules: Rules) => string)(rules)} ":" ${ws} ${item}`);
  return rules.named('object', `"{" ${ws} (${pair} ${ws} ("," ${ws} ${pair} ${ws})*)? "}"`);
}

export function arrayOf(rules: Rules, item: string, min: number, max: number): string {
  const ws = space(rules);
  if (max === 0) return rules.named('array', `"[" ${ws} "]"`);
  const more = repeat(`("," ${ws} ${item} ${ws})`, Math.max(0, min - 1), max - 1);
  const some = `${item} ${ws}${max === 1 ? '' : ` ${more}`}`;
  return rules.named('array', `"[" ${ws} ${min === 0 ? `(${some})?` : some} "]"`);
}

/** Integers from `min` to `max`, which may be infinite; both are whole numbers. */
export function integerRange(rules: Rules, min: number, max: number, path: string): string {
  if (min > max) throw new GrammarFault(path, 'allows no number');
  const parts: string[] = [];
  if (min < 0) {
    const from = max < 0 ? -max : 1;
    parts.push(`"-" (${naturals(from, -min)})`);
  }
  if (max >= 0) parts.push(naturals(Math.max(0, min), max));
  return rules.named('integer', parts.join(' | '));
}

const mostDigits = 16;

/** Natural numbers from `low` to `high`, as alternatives: one group for each number of digits. */
function naturals(low: number, high: number): string {
  const parts: string[] = [];
  const end = high === Number.POSITIVE_INFINITY ? 10 ** String(low).length - 1 : high;
  for (let from = low; from <= end; ) {
    const digits = String(from).length;
    const to = Math.min(end, 10 ** digits - 1);
    parts.push(digitRange(String(from), String(to)));
    from = to + 1;
  }
  if (high === Number.POSITIVE_INFINITY) parts.push(`[1-9] [0-9]{${String(low).length},${mostDigits}}`);
  return parts.join(' | ');
}

/** Numbers of equally many digits, from `low` to `high`. */
function digitRange(low: string, high: string): string {
  if (low === '') return '""';
  const [first, last] = [low[0] as string, high[0] as string];
  const [restLow, restHigh] = [low.slice(1), high.slice(1)];
  const size = restLow.length;
  const any = size === 0 ? '' : ` [0-9]${size === 1 ? '' : `{${size}}`}`;
  const full = /^0*$/.test(restLow) && /^9*$/.test(restHigh);
  if (first === last) return full ? `"${first}"${any}` : `"${first}" (${digitRange(restLow, restHigh)})`;
  if (full) return `[${first}-${last}]${any}`;
  const parts = [`"${first}" (${digitRange(restLow, '9'.repeat(size))})`];
  const [from, to] = [Number(first) + 1, Number(last) - 1];
  if (from <= to) parts.push(`[${from}-${to}]${any}`);
  parts.push(`"${last}" (${digitRange('0'.repeat(size), restHigh)})`);
  return parts.join(' | ');
}
