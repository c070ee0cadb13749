/** Rules of a grammar in GBNF (llama.cpp's dialect), each made once. */

/** What a client asks for cannot be a grammar: its message says what, `path` where. */
export class GrammarFault extends Error {
  constructor(
    readonly path: string,
    message: string,
  ) {
    super(message);
  }
}

/** Largest grammar, in characters; the engine takes 64 KiB. */
const mostText = 60_000;
/** Largest count in a repetition: the engine's parser takes 2,000 repeated symbols. */
export const mostRepeats = 1_000;

export class Rules {
  readonly #bodies = new Map<string, string>();
  readonly #names = new Map<string, string>();
  #size = 0;

  /** The name of a rule with this body; equal bodies share one. */
  named(hint: string, body: string): string {
    const known = this.#names.get(body);
    if (known !== undefined) return known;
    const name = this.fresh(hint);
    this.define(name, body);
    this.#names.set(body, name);
    return name;
  }

  /** A name to be defined later: rules may recurse. */
  fresh(hint: string): string {
    const stem = hint.replace(/[^A-Za-z0-9]+/g, '-').slice(0, 24) || 'rule';
    let name = stem;
    for (let count = 2; this.#bodies.has(name); count++) name = `${stem}-${count}`;
    this.#bodies.set(name, '');
    return name;
  }

  define(name: string, body: string): void {
    this.#size += name.length + body.length + 6;
    if (this.#size > mostText) throw new GrammarFault('', `needs a grammar of more than ${mostText} characters`);
    this.#bodies.set(name, body);
  }

  text(root: string): string {
    const rest = [...this.#bodies].map(([name, body]) => `${name} ::= ${body}`);
    return [`root ::= ${root}`, ...rest].join('\n');
  }
}

/** A text as a literal. */
export function literal(text: string): string {
  return `"${[...text].map(inLiteral).join('')}"`;
}

const short: Readonly<Record<string, string>> = { '"': '\\"', '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function inLiteral(character: string): string {
  const code = character.codePointAt(0) as number;
  return short[character] ?? (code < 0x20 || code === 0x7f ? hex(code) : character);
}

/** A code point inside a character class. */
export function inClass(code: number): string {
  const letter = (code >= 0x30 && code <= 0x39) || (code >= 0x41 && code <= 0x5a) || (code >= 0x61 && code <= 0x7a);
  return letter ? String.fromCharCode(code) : hex(code);
}

function hex(code: number): string {
  if (code <= 0xff) return `\\x${code.toString(16).padStart(2, '0')}`;
  return code <= 0xffff ? `\\u${code.toString(16).padStart(4, '0')}` : `\\U${code.toString(16).padStart(8, '0')}`;
}

/** `item` at least `min` and at most `max` times. */
export function repeat(item: string, min: number, max: number): string {
  if (min === 0 && max === Number.POSITIVE_INFINITY) return `${item}*`;
  if (min === 1 && max === Number.POSITIVE_INFINITY) return `${item}+`;
  if (min === 0 && max === 1) return `${item}?`;
  return `${item}{${min},${max === Number.POSITIVE_INFINITY ? '' : max}}`;
}
