/** What a client reads of the tokens: text, cut at stop strings. */
import { finishCodes } from '../../transport/index.js';
import type { TokenLogprob } from './ports.js';
import type { ChoiceState, Request } from './request.js';

/** With the first token, in one write with it; a failure before it gets a status of its own. */
export function begin(r: Request): void {
  if (r.begun) return;
  r.begun = true;
  r.stream.begin(r.id, r.prepared);
}

export function deliver(
  r: Request,
  choice: ChoiceState,
  tokens: readonly number[],
  finish: number,
  logprobs: readonly TokenLogprob[] | undefined,
): void {
  if (choice.finished) return;
  // Token by token, however they travelled: a client gets an event for each, and none counts after a stop string.
  const last = tokens.length - 1;
  for (let at = 0; at < last; at++) {
    const text = choice.detokenizer.push(tokens[at] as number);
    say(r, choice, text, 1, finishCodes.none, logprobs?.slice(at, at + 1));
    if (choice.finished) {
      choice.tokens.length -= last - at;
      return;
    }
  }
  let text = last < 0 ? '' : choice.detokenizer.push(tokens[last] as number);
  if (finish !== finishCodes.none) text += choice.detokenizer.end();
  say(r, choice, text, last < 0 ? 0 : 1, finish, logprobs?.slice(Math.max(0, last)));
}

/** The next text of a choice to its client, unless a stop string ends it. */
function say(
  r: Request,
  choice: ChoiceState,
  piece: string,
  tokens: number,
  finish: number,
  logprobs: readonly TokenLogprob[] | undefined,
): void {
  let text = piece;
  let stopped: string | undefined;
  if (choice.stop !== undefined) {
    const found = choice.stop.push(text);
    stopped = found.stopped;
    text = finish !== finishCodes.none && stopped === undefined ? found.text + choice.stop.end() : found.text;
  }
  if (tokens > 0 || text !== '') r.stream.text(choice.index, text, tokens, logprobs);
  if (stopped !== undefined || finish !== finishCodes.none) {
    choice.finished = true;
    choice.early = [];
    const reason = stopped !== undefined || finish !== finishCodes.length ? 'stop' : 'length';
    r.stream.finish(choice.index, reason, stopped);
  }
}
