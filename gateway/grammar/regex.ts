/**
 * A regular expression as a grammar: literals, classes, groups, alternatives and repetitions, matched from beginning to end. What a grammar
 * cannot say (look-around, back references, lazy matching, anchors in the middle) is refused.
 */
import { GrammarFault, inClass, literal, mostRepeats, repeat } from './rules.js';

/** How a character is written: as it is, or as inside a JSON string. */
export type Writing = 'plain' | 'json';

type Range = readonly [number, number];

const last = 0x10ffff;
const sets: Readonly<Record<string, readonly Range[]>> = {
  d: [[0x30, 0x39]],
  w: [
    [0x30, 0x39],
    [0x41, 0x5a],
    [0x5f, 0x5f],
    [0x61, 0x7a],
  ],
  s: [
    [0x09, 0x0d],
    [0x20, 0x20],
    [0xa0, 0xa0],
  ],
};
const controls: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, f: 12, v: 11, '0': 0 };
/** What a JSON string must escape is not matched by a class there. */
const unsafe: readonly Range[] = [
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
  [0x7f, 0x7f],
];
const newline: readonly Range[] = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
];
const mostDepth = 64;

export function regexGrammar(source: string, path: string, writing: Writing = 'plain'): string {
  const reader = new Reader([...source.replace(/^\^/, '').replace(/(?<!\\)((?:\\\\)*)\$$/, '$1')], path, writing);
  const body = reader.alternatives(0);
  if (!reader.done) reader.refuse('has an unmatched )');
  return body;
}

class Reader {
  #at = 0;

  constructor(
    private readonly text: readonly string[],
    private readonly path: string,
    private readonly writing: Writing,
  ) {}

  get done(): boolean {
    return this.#at >= this.text.length;
  }

  refuse(why: string): never {
    throw new GrammarFault(this.path, `${why} at character ${this.#at + 1}`);
  }

  alternatives(depth: number): string {
    if (depth > mostDepth) this.refuse('is nested too deeply');
    const parts = [this.#sequence(depth)];
    while (this.#take('|')) parts.push(this.#sequence(depth));
    return parts.length === 1 ? (parts[0] as string) : `(${parts.join(' | ')})`;
  }

  #sequence(depth: number): string {
    const items: string[] = [];
    while (!this.done && this.text[this.#at] !== '|' && this.text[this.#at] !== ')') {
      items.push(this.#repeated(this.#atom(depth)));
    }
    return items.length === 0 ? '""' : items.join(' ');
  }

  #repeated(atom: string): string {
    let [min, max] = [1, 1];
    if (this.#take('*')) [min, max] = [0, Number.POSITIVE_INFINITY];
    else if (this.#take('+')) [min, max] = [1, Number.POSITIVE_INFINITY];
    else if (this.#take('?')) [min, max] = [0, 1];
    else {
      const found = /^\{(\d{1,6})(,(\d{0,6}))?\}/.exec(this.text.slice(this.#at, this.#at + 16).join(''));
      if (found === null) return atom;
      this.#at += found[0].length;
      min = Number(found[1]);
      max = found[2] === undefined ? min : found[3] === '' ? Number.POSITIVE_INFINITY : Number(found[3]);
      if (min > max) this.refuse('repeats less than its least');
      if (min > mostRepeats || (max !== Number.POSITIVE_INFINITY && max > mostRepeats)) {
        this.refuse(`repeats more than ${mostRepeats} times`);
      }
    }
    // Lazy or not makes no difference to what matches as a whole.
    this.#take('?');
    if ('*+'.includes(this.text[this.#at] ?? ' ')) this.refuse('repeats a repetition');
    return repeat(`(${atom})`, min, max);
  }

  #atom(depth: number): string {
    const character = this.#next();
    switch (character) {
      case '(': {
        if (this.#take('?')) {
          if (this.#take('<')) {
            if (this.#take('=') || this.#take('!')) this.refuse('looks behind');
            while (!this.#take('>')) this.#next();
          } else if (!this.#take(':')) this.refuse('looks ahead');
        }
        const inner = this.alternatives(depth + 1);
        if (!this.#take(')')) this.refuse('has an unmatched (');
        return `(${inner})`;
      }
      case '[':
        return this.#class();
      case '.':
        return this.#oneOf(newline, true);
      case '\\':
        return this.#escape();
      case '^':
      case '$':
        return this.refuse('has an anchor in the middle');
      case '*':
      case '+':
      case '?':
        return this.refuse('repeats nothing');
      default:
        return this.#literal(character);
    }
  }

  #escape(): string {
    const character = this.#next();
    const set = sets[character.toLowerCase()];
    if (set !== undefined) return this.#oneOf(set, character !== character.toLowerCase());
    if (/[bB1-9kpP]/.test(character)) this.refuse(`has \\${character}, which a grammar cannot say`);
    return this.#literal(String.fromCodePoint(this.#escaped(character)));
  }

  /** The code point after a backslash. */
  #escaped(character: string): number {
    if (character === 'x' || character === 'u') {
      const size = character === 'x' ? 2 : 4;
      const digits = this.text.slice(this.#at, this.#at + size).join('');
      if (!new RegExp(`^[0-9a-fA-F]{${size}}$`).test(digits))
        this.refuse(`has \\${character} without ${size} hex digits`);
      this.#at += size;
      return Number.parseInt(digits, 16);
    }
    return controls[character] ?? (character.codePointAt(0) as number);
  }

  #class(): string {
    const negated = this.#take('^');
    const ranges: Range[] = [];
    while (!this.#take(']')) {
      const from = this.#member(ranges);
      if (from === undefined) continue;
      if (this.text[this.#at] === '-' && this.text[this.#at + 1] !== ']') {
        this.#at++;
        const to = this.#member(ranges);
        if (to === undefined || to < from) this.refuse('has a range that is none');
        ranges.push([from, to as number]);
      } else ranges.push([from, from]);
    }
    return this.#oneOf(ranges, negated);
  }

  /** A code point of a class, or undefined when a whole set went in. */
  #member(ranges: Range[]): number | undefined {
    const character = this.#next();
    if (character !== '\\') return character.codePointAt(0) as number;
    const escaped = this.#next();
    const set = sets[escaped.toLowerCase()];
    if (set === undefined) return escaped === 'b' ? 8 : this.#escaped(escaped);
    ranges.push(...(escaped === escaped.toLowerCase() ? set : complement(set)));
    return undefined;
  }

  #oneOf(ranges: readonly Range[], negated: boolean): string {
    const wanted = negated ? complement(ranges) : union(ranges);
    const shown = this.writing === 'json' ? without(wanted, unsafe) : wanted;
    if (shown.length === 0) this.refuse('has a class of no characters');
    return `[${shown.map(([from, to]) => (from === to ? inClass(from) : `${inClass(from)}-${inClass(to)}`)).join('')}]`;
  }

  #literal(character: string): string {
    return literal(this.writing === 'json' ? JSON.stringify(character).slice(1, -1) : character);
  }

  #take(character: string): boolean {
    if (this.text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #next(): string {
    if (this.done) this.refuse('ends too early');
    return this.text[this.#at++] as string;
  }
}

/** Sorted, without overlaps, and without surrogates: no text holds one. */
function union(ranges: readonly Range[]): Range[] {
  const sorted = [...ranges].sort((a, b) => a[0] - b[0]);
  const out: [number, number][] = [];
  for (const [from, to] of sorted) {
    const before = out.at(-1);
    if (before !== undefined && from <= before[1] + 1) before[1] = Math.max(before[1], to);
    else out.push([from, to]);
  }
  return out;
}

function complement(ranges: readonly Range[]): Range[] {
  const out: Range[] = [];
  let next = 0;
  for (const [from, to] of union(ranges)) {
    if (from > next) out.push([next, from - 1]);
    next = to + 1;
  }
  if (next <= last) out.push([next, last]);
  return out;
}

const without = (ranges: readonly Range[], removed: readonly Range[]): Range[] =>
  complement([...complement(ranges), ...removed]);
