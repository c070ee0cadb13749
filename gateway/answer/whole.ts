/** An answer in one piece. */
import type { AnswerShape, FinishReason } from '../../actors/index.js';
import { answerParser } from './parser.js';

export interface WholeAnswer {
  readonly text: string;
  /** Undefined: the model keeps none apart. */
  readonly reasoning?: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
  readonly finish: FinishReason | 'tool_calls' | null;
}

/** A whole answer, read as its stream would have been. */
export function readAnswer(text: string, finish: FinishReason | null, shape: AnswerShape | undefined): WholeAnswer {
  if (shape === undefined) return { text, calls: [], finish };
  const parser = answerParser(shape);
  const calls: { name: string; arguments: string }[] = [];
  let [content, reasoning] = ['', ''];
  for (const delta of [...parser.push(text), ...parser.end()]) {
    if (delta.kind === 'content') content += delta.text;
    else if (delta.kind === 'reasoning') reasoning += delta.text;
    else if (delta.kind === 'call') calls.push({ name: delta.name, arguments: '' });
    else (calls[delta.call] as { arguments: string }).arguments += delta.text;
  }
  return {
    text: content,
    ...(shape.reasoning === undefined ? {} : { reasoning }),
    calls,
    finish: calls.length > 0 && finish === 'stop' ? 'tool_calls' : finish,
  };
}
