/**
 * What a model's text says beside its answer: reasoning in `<think>` and calls of tools in `<tool_call>`. The text arrives in any pieces;
 * what comes out depends on the whole text alone, and no piece of a mark is ever shown.
 *
 *     content ──<think>──▶ reasoning ──</think>──▶ content
 *     content ──<tool_call>──▶ call ──its end──▶ content
 */
import type { AnswerShape } from '../../actors/index.js';
import { CallReader } from './call-reader.js';
import { callMarks, type Delta } from './delta.js';

export interface AnswerParser {
  push(text: string): readonly Delta[];
  /** The text is over: what is still held back. */
  end(): readonly Delta[];
  /** Calls seen so far. */
  readonly calls: number;
}

type Mode = 'content' | 'reasoning';
interface Mark {
  readonly mark: string;
  readonly leads: Mode | 'call';
}

const thinks: Mark = { mark: '<think>', leads: 'reasoning' };
const thought: Mark = { mark: '</think>', leads: 'content' };
const calls: Mark = { mark: callMarks.open, leads: 'call' };

export function answerParser({ tools, reasoning }: AnswerShape): AnswerParser {
  const marks: Readonly<Record<Mode, readonly Mark[]>> = {
    content: [...(reasoning === undefined ? [] : [thinks]), ...(tools === undefined ? [] : [calls])],
    reasoning: [thought],
  };
  let mode: Mode = reasoning === 'open' ? 'reasoning' : 'content';
  let reader: CallReader | undefined;
  let held = '';
  let count = 0;
  /** Blanks between a mark and the text after it belong to neither. */
  let trims = mode === 'reasoning';

  function say(out: Delta[], text: string): void {
    const shown = trims ? text.trimStart() : text;
    if (shown === '') return;
    trims = false;
    const last = out.at(-1);
    if (last?.kind === mode) out[out.length - 1] = { kind: mode, text: last.text + shown };
    else out.push({ kind: mode, text: shown });
  }

  function call(out: Delta[], ended: boolean): void {
    const { deltas, rest } = (reader as CallReader).push(held, ended);
    held = '';
    for (const delta of deltas) {
      if (delta.kind === 'content') say(out, delta.text);
      else out.push(delta);
    }
    if (rest === undefined) return;
    if ((reader as CallReader).called) {
      count++;
      trims = true;
    }
    reader = undefined;
    held = rest;
  }

  function advance(ended: boolean): readonly Delta[] {
    const out: Delta[] = [];
    for (;;) {
      if (reader !== undefined) {
        call(out, ended);
        if (reader !== undefined) return out;
        continue;
      }
      const found = first(held, marks[mode]);
      if (found === undefined) {
        const keep = ended ? 0 : tail(held, marks[mode]);
        say(out, held.slice(0, held.length - keep));
        held = held.slice(held.length - keep);
        return out;
      }
      say(out, held.slice(0, found.at));
      held = held.slice(found.at + found.mark.mark.length);
      if (found.mark.leads === 'call') reader = new CallReader(count, tools ?? []);
      else {
        mode = found.mark.leads;
        trims = true;
      }
    }
  }

  return {
    push(text) {
      held += text;
      return advance(false);
    },
    end: () => advance(true),
    get calls() {
      return count;
    },
  };
}

function first(text: string, marks: readonly Mark[]): { readonly at: number; readonly mark: Mark } | undefined {
  let found: { at: number; mark: Mark } | undefined;
  for (const mark of marks) {
    const at = text.indexOf(mark.mark);
    if (at >= 0 && (found === undefined || at < found.at)) found = { at, mark };
  }
  return found;
}

/** Length of the longest end of `text` that may still become a mark. */
function tail(text: string, marks: readonly Mark[]): number {
  let longest = 0;
  for (const { mark } of marks) {
    for (let size = Math.min(mark.length - 1, text.length); size > longest; size--) {
      if (text.endsWith(mark.slice(0, size))) longest = size;
    }
  }
  return longest;
}
