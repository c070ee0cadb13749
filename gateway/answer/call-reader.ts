/**
 * One call of a tool, from behind `<tool_call>`: `{"name": …, "arguments": {…}}` and `</tool_call>`. As soon as the name is known, and is
 * a tool's, the arguments pass through as they come; any other text between the marks is content, marks included.
 */
import { callMarks, type Delta } from './delta.js';

/** Name first, as models are trained to write it and as a grammar makes them; anything else waits for its end. */
const head = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)/s;
/** A call of no arguments may leave them out. */
const bare = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}\s*$/s;
/** Beyond this it is no call whose name comes first. */
const mostHead = 4_096;

type Phase = 'head' | 'arguments' | 'tail' | 'foreign';

export class CallReader {
  /** It has become a call. */
  called = false;
  #phase: Phase = 'head';
  #held = '';
  #depth = 0;
  #inText = false;
  #escaped = false;

  constructor(
    private readonly call: number,
    private readonly tools: readonly string[],
  ) {}

  /** `rest`: the call is over, and this text follows it. `ended`: nothing follows. */
  push(text: string, ended: boolean): { readonly deltas: readonly Delta[]; readonly rest: string | undefined } {
    this.#held += text;
    const deltas: Delta[] = [];
    if (this.#phase === 'head') this.#begin(deltas);
    if (this.#phase === 'arguments') this.#pass(deltas);
    const rest = this.#close(deltas, ended);
    return { deltas, rest };
  }

  #begin(deltas: Delta[]): void {
    const found = head.exec(this.#held.slice(0, mostHead));
    if (found !== null) {
      const name = text(found[1] as string);
      if (name === undefined || !this.tools.includes(name)) this.#phase = 'foreign';
      else {
        this.called = true;
        this.#phase = 'arguments';
        this.#held = this.#held.slice(found[0].length);
        deltas.push({ kind: 'call', call: this.call, name });
      }
    } else if (this.#held.length >= mostHead) this.#phase = 'foreign';
  }

  /** JSON to the end of its outermost object: a mark inside a string is part of the string. */
  #pass(deltas: Delta[]): void {
    let at = 0;
    for (; at < this.#held.length && this.#phase === 'arguments'; at++) {
      const character = this.#held[at];
      if (this.#escaped) this.#escaped = false;
      else if (this.#inText) {
        if (character === '\\') this.#escaped = true;
        else if (character === '"') this.#inText = false;
      } else if (character === '"') this.#inText = true;
      else if (character === '{' || character === '[') this.#depth++;
      else if ((character === '}' || character === ']') && --this.#depth === 0) this.#phase = 'tail';
    }
    if (at > 0) deltas.push({ kind: 'arguments', call: this.call, text: this.#held.slice(0, at) });
    this.#held = this.#held.slice(at);
  }

  #close(deltas: Delta[], ended: boolean): string | undefined {
    const at = this.#phase === 'arguments' ? -1 : this.#held.indexOf(callMarks.close);
    if (at < 0 && !ended) return undefined;
    const inner = at < 0 ? this.#held : this.#held.slice(0, at);
    if (!this.called) this.#whole(deltas, inner, at < 0 ? '' : callMarks.close);
    this.#held = at < 0 ? '' : this.#held.slice(at + callMarks.close.length);
    return this.#held;
  }

  /** All that is between the marks, read at once: a call in another order, or no call. */
  #whole(deltas: Delta[], inner: string, close: string): void {
    const call = close === '' ? undefined : callIn(inner);
    if (call === undefined || !this.tools.includes(call.name)) {
      deltas.push({ kind: 'content', text: `${callMarks.open}${inner}${close}` });
      return;
    }
    this.called = true;
    deltas.push({ kind: 'call', call: this.call, name: call.name });
    deltas.push({ kind: 'arguments', call: this.call, text: call.arguments });
  }
}

function text(json: string): string | undefined {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === 'string' ? value : undefined;
  } catch {
    return undefined;
  }
}

function callIn(inner: string): { readonly name: string; readonly arguments: string } | undefined {
  const short = bare.exec(inner);
  if (short !== null) {
    const name = text(short[1] as string);
    return name === undefined ? undefined : { name, arguments: '{}' };
  }
  try {
    const value = JSON.parse(inner) as { name?: unknown; arguments?: unknown; parameters?: unknown } | null;
    const given = value?.arguments ?? value?.parameters;
    if (typeof value?.name !== 'string' || typeof given !== 'object' || given === null) return undefined;
    return { name: value.name, arguments: JSON.stringify(given) };
  } catch {
    return undefined;
  }
}
