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

export type Deliver<R> = (
  owner: R,
  choice: ChoiceState,
  tokens: readonly number[],
  finish: number,
  logprobs: readonly TokenLogprob[] | undefined,
) => void;

/** `owner` is handed through to `deliver`, so that the data path makes no closure per item. */
export function arrive<R>(owner: R, choice: ChoiceState, item: FrameItem, deliver: Deliver<R>): Arrival {
  // A worker does not know of stop strings: it goes on with this choice as long as another one runs.
  if (choice.finished) return 'ok';
  if (item.position === choice.tokens.length && choice.early.length === 0) {
    for (const token of item.tokens) choice.tokens.push(token);
    deliver(owner, choice, item.tokens, item.finish, item.logprobs && tokenLogprobs(item));
    return 'ok';
  }
  return outOfTurn(owner, choice, item, deliver);
}

function outOfTurn<R>(owner: R, choice: ChoiceState, item: FrameItem, deliver: Deliver<R>): Arrival {
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
  const verdict = take(owner, choice, piece, deliver);
  if (verdict !== 'ok' || choice.early.length === 0) return verdict;
  return takeEarly(owner, choice, deliver);
}

/** Delivers what `piece` has beyond the delivered positions; checks the rest against them. */
function take<R>(owner: R, choice: ChoiceState, piece: Early, deliver: Deliver<R>): Arrival {
  const skip = choice.tokens.length - piece.position;
  for (let i = 0; i < skip && i < piece.tokens.length; i++) {
    if (piece.tokens[i] !== choice.tokens[piece.position + i]) return 'conflict';
  }
  if (skip >= piece.tokens.length && piece.finish === 0) return 'ok';
  const fresh = skip === 0 ? piece.tokens : piece.tokens.slice(skip);
  for (const token of fresh) choice.tokens.push(token);
  deliver(owner, choice, fresh, piece.finish, skip === 0 ? piece.logprobs : piece.logprobs?.slice(skip));
  return 'ok';
}

function takeEarly<R>(owner: R, choice: ChoiceState, deliver: Deliver<R>): Arrival {
  choice.early.sort((a, b) => a.position - b.position);
  while (!choice.finished && choice.early.length > 0) {
    const piece = choice.early[0] as Early;
    if (piece.position > choice.tokens.length) return 'held';
    choice.early.shift();
    const verdict = take(owner, choice, piece, deliver);
    if (verdict !== 'ok') return verdict;
  }
  return 'ok';
}

function tokenLogprobs(item: FrameItem): readonly TokenLogprob[] {
  return (item.logprobs ?? []).map(([logprob, top], i) => ({ token: item.tokens[i] ?? -1, logprob, top }));
}
