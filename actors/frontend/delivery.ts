/**
 * Brings a choice's tokens into order: delivers position = next, holds a bounded few ahead, drops what is behind, and reports a
 * different token at a delivered position (design 4.3). Pure over `ChoiceState`; the frontend does the talking.
 */
import type { FrameItem } from '../../transport/index.js';
import type { TokenLogprob } from './ports.js';
import type { ChoiceState, Early } from './request.js';

/** Pieces a choice may hold ahead of its next position; one more is a hole that only a Resync can fill. */
export const earlyLimit = 64;

export type Arrival =
  /** Delivered or dropped as a repeat. */
  | 'ok'
  /** Held: an earlier position is missing. */
  | 'held'
  /** Too far ahead to hold. */
  | 'overrun'
  /** A delivered position came again with another token: somebody computed from the wrong state. */
  | 'conflict';

export type Deliver = (
  tokens: readonly number[],
  finish: number,
  logprobs: readonly TokenLogprob[] | undefined,
) => void;

export function arrive(choice: ChoiceState, item: FrameItem, deliver: Deliver): Arrival {
  // A worker does not know of stop strings: it goes on with this choice as long as another one runs.
  if (choice.finished) return 'ok';
  const piece: Early = {
    position: item.position,
    tokens: item.tokens,
    finish: item.finish,
    logprobs: item.logprobs && tokenLogprobs(item),
  };
  const next = choice.tokens.length;
  if (piece.position > next) {
    if (choice.early.length >= earlyLimit) return 'overrun';
    choice.early.push(piece);
    return 'held';
  }
  const verdict = take(choice, piece, deliver);
  if (verdict !== 'ok' || choice.early.length === 0) return verdict;
  return takeEarly(choice, deliver);
}

/** Delivers what `piece` has beyond the delivered positions; checks the rest against them. */
function take(choice: ChoiceState, piece: Early, deliver: Deliver): Arrival {
  const skip = choice.tokens.length - piece.position;
  for (let i = 0; i < skip && i < piece.tokens.length; i++) {
    if (piece.tokens[i] !== choice.tokens[piece.position + i]) return 'conflict';
  }
  if (skip >= piece.tokens.length && piece.finish === 0) return 'ok';
  const fresh = skip === 0 ? piece.tokens : piece.tokens.slice(skip);
  for (const token of fresh) choice.tokens.push(token);
  deliver(fresh, piece.finish, skip === 0 ? piece.logprobs : piece.logprobs?.slice(skip));
  return 'ok';
}

function takeEarly(choice: ChoiceState, deliver: Deliver): Arrival {
  choice.early.sort((a, b) => a.position - b.position);
  while (!choice.finished && choice.early.length > 0) {
    const piece = choice.early[0] as Early;
    if (piece.position > choice.tokens.length) return 'held';
    choice.early.shift();
    const verdict = take(choice, piece, deliver);
    if (verdict !== 'ok') return verdict;
  }
  return 'ok';
}

function tokenLogprobs(item: FrameItem): readonly TokenLogprob[] {
  return (item.logprobs ?? []).map(([logprob, top], i) => ({ token: item.tokens[i] ?? -1, logprob, top }));
}
