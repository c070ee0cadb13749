/**
 * Looks over a grammar that a client has written, before the engine's library does: that one prints what it cannot parse, which is a client's
 * text, and recurses as deeply as the text says.
 */
import { GrammarFault, mostRepeats } from './rules.js';

const mostDepth = 64;
const character = String.raw`(?:[^\\\0]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]\-]))`;
/** Each symbol with the blanks and comments behind it; what a newline ends is seen to by the reader. */
const tokens: readonly (readonly [kind: string, form: RegExp])[] = [
  ['newline', /(?:\r\n|\r|\n)/y],
  ['blank', /(?:[ \t]|#[^\r\n]*)+/y],
  ['defines', /::=/y],
  ['name', /[A-Za-z0-9-]+/y],
  ['item', new RegExp(`"(?:(?!")${character})*"`, 'yu')],
  ['item', new RegExp(String.raw`\[\^?(?:(?!\])${character})*\]`, 'yu')],
  ['item', /\./y],
  ['repeat', /[*+?]/y],
  ['count', /\{[ \t]*\d{1,6}[ \t]*(?:,[ \t]*(?:\d{1,6}[ \t]*)?)?\}/y],
  ['open', /\(/y],
  ['close', /\)/y],
  ['or', /\|/y],
];

interface Token {
  readonly kind: string;
  readonly text: string;
  readonly at: number;
}

/** Throws GrammarFault if the text is no grammar with a rule `root`. */
export function checkGbnf(text: string): void {
  const line = (at: number) => `at line ${text.slice(0, at).split(/\r\n|\r|\n/).length}`;
  const fault = (why: string, at: number): never => {
    throw new GrammarFault('', `${why} ${line(at)}`);
  };
  const list = [...read(text, fault)];
  const defined = new Set<string>();
  const used = new Map<string, number>();
  let depth = 0;
  /** Something stands here that may be repeated. */
  let item = false;
  for (const [index, { kind, text: symbol, at }] of list.entries()) {
    const defines = list[index + 1]?.kind === 'defines';
    switch (kind) {
      case 'name':
        if (!defines) used.set(symbol, at);
        else if (depth > 0) fault('has an unmatched (', at);
        else if (index > 0 && !startsLine(text, at)) fault('wants a rule on a line of its own', at);
        else defined.add(symbol);
        item = !defines;
        break;
      case 'defines':
        if (list[index - 1]?.kind !== 'name') fault('has ::= without a name before it', at);
        item = false;
        break;
      case 'open':
        if (++depth > mostDepth) fault(`is nested deeper than ${mostDepth} levels`, at);
        item = false;
        break;
      case 'close':
        if (--depth < 0) fault('has an unmatched )', at);
        item = true;
        break;
      case 'or':
        item = false;
        break;
      case 'count':
        if ((symbol.match(/\d+/g) ?? []).some((count) => Number(count) > mostRepeats))
          fault(`repeats more than ${mostRepeats} times`, at);
        if (!item) fault('repeats nothing', at);
        break;
      case 'repeat':
        if (!item) fault('repeats nothing', at);
        break;
      default:
        item = true;
    }
    if (index === 0 && !defines) fault('does not begin with a rule', at);
  }
  if (depth > 0) fault('has an unmatched (', text.length);
  for (const [name, at] of used) if (!defined.has(name)) fault(`has no rule ${name}, which it names`, at);
  if (!defined.has('root')) fault('has no rule root', 0);
}

const startsLine = (text: string, at: number) => /(?:^|[\r\n])[ \t]*$/.test(text.slice(Math.max(0, at - 256), at));

function* read(text: string, fault: (why: string, at: number) => never): Generator<Token> {
  for (let at = 0; at < text.length; ) {
    const token = tokenAt(text, at);
    if (token === undefined) fault('cannot be read', at);
    const { kind, text: symbol } = token as Token;
    at += symbol.length;
    if (kind !== 'newline' && kind !== 'blank') yield token as Token;
  }
}

function tokenAt(text: string, at: number): Token | undefined {
  for (const [kind, form] of tokens) {
    form.lastIndex = at;
    const found = form.exec(text);
    if (found !== null) return { kind, text: found[0], at };
  }
  return undefined;
}
