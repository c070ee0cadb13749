import { expect } from 'chai';
import fc from 'fast-check';
import { type Arrival, arrive, earlyLimit } from '../../actors/frontend/delivery.js';
import type { ChoiceState } from '../../actors/frontend/request.js';
import type { FrameItem } from '../../transport/index.js';

const fresh = (): ChoiceState => ({
  index: 0,
  tokens: [],
  detokenizer: { push: () => '', end: () => '' },
  stop: undefined,
  early: [],
  finished: false,
});

const item = (position: number, tokens: number[], finish = 0): FrameItem => ({
  num: 1,
  attempt: 1,
  choice: 0,
  position,
  tokens,
  finish,
});

function play(items: readonly FrameItem[]) {
  const choice = fresh();
  const ends: number[] = [];
  const verdicts: Arrival[] = items.map((piece) =>
    arrive(null, choice, piece, (_owner, _choice, _tokens, finish) => {
      if (finish === 0) return;
      choice.finished = true;
      ends.push(finish);
    }),
  );
  return { choice, ends, verdicts };
}

describe('token delivery', () => {
  it('gives every token once and in order, whatever is repeated, reordered or cut anew', () => {
    const run = fc.integer({ min: 1, max: 30 }).chain((length) =>
      fc.record({
        length: fc.constant(length),
        // Pieces of the sequence 100, 101, …; every position is covered by the single ones appended below.
        pieces: fc.array(fc.tuple(fc.nat(length - 1), fc.integer({ min: 1, max: 5 })), { maxLength: 20 }),
        order: fc.shuffledSubarray([...Array(length).keys()], { minLength: length, maxLength: length }),
      }),
    );
    fc.assert(
      fc.property(run, ({ length, pieces, order }) => {
        const cut = (from: number, size: number) => {
          const to = Math.min(length, from + size);
          const tokens = Array.from({ length: to - from }, (_, i) => 100 + from + i);
          return item(from, tokens, to === length ? 1 : 0);
        };
        const items = [...pieces.map(([from, size]) => cut(from, size)), ...order.map((from) => cut(from, 1))];
        const { choice, ends } = play(items);
        expect(choice.tokens).to.deep.equal(Array.from({ length }, (_, i) => 100 + i));
        expect(ends).to.deep.equal([1]);
      }),
      { numRuns: 1_000 },
    );
  });

  it('holds token 2 of D until token 1 of P has come', () => {
    const { choice, verdicts } = play([item(1, [7]), item(0, [5])]);
    expect(verdicts).to.deep.equal(['held', 'ok']);
    expect(choice.tokens).to.deep.equal([5, 7]);
  });

  it('reports a different token at a delivered position', () => {
    expect(play([item(0, [5, 6]), item(1, [9])]).verdicts).to.deep.equal(['ok', 'conflict']);
  });

  it('reports a different token at a position that was held', () => {
    expect(play([item(1, [7]), item(1, [8]), item(0, [5])]).verdicts.at(-1)).to.equal('conflict');
  });

  it('holds a bounded number of pieces ahead', () => {
    const pieces = Array.from({ length: earlyLimit + 1 }, (_, i) => item(i + 1, [i]));
    const { verdicts } = play(pieces);
    expect(verdicts.slice(0, earlyLimit)).to.satisfy((all: Arrival[]) => all.every((verdict) => verdict === 'held'));
    expect(verdicts[earlyLimit]).to.equal('overrun');
  });

  it('takes an end without a token', () => {
    const { choice, ends } = play([item(0, [5]), item(1, [], 1)]);
    expect(choice.tokens).to.deep.equal([5]);
    expect(ends).to.deep.equal([1]);
  });
});
