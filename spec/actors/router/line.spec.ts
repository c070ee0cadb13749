import { expect } from 'chai';
import { Line, type Waits } from '../../../actors/router/line.js';

const none: ReadonlySet<string> = new Set();
const waits = (num: number, over: Partial<Waits> = {}): Waits => ({
  num,
  attempt: 1,
  model: 'm',
  choices: 1,
  exclude: none,
  ...over,
});

function lineOf(...all: Waits[]): Line<number> {
  const line = new Line<number>();
  for (const each of all) line.add(each, each.num);
  return line;
}

function offered(line: Line<number>, take: (num: number) => boolean): number[] {
  const seen: number[] = [];
  line.offer((num) => {
    seen.push(num);
    return take(num);
  });
  return seen;
}

describe('the line', () => {
  it('offers requests that are tried again first, and each kind in order of arrival', () => {
    const again = { attempt: 2, exclude: new Set(['d']) };
    const line = lineOf(waits(1), waits(2, { choices: 3 }), waits(9, again), waits(3), waits(8, { attempt: 3 }));
    expect(offered(line, () => true)).to.deep.equal([9, 8, 1, 2, 3]);
    expect(line.size).to.equal(0);
  });

  it('does not look behind one that did not fit, but at those that ask for something else', () => {
    const many = Array.from({ length: 5_000 }, (_, i) => waits(i + 1));
    const line = lineOf(...many, waits(6_000, { choices: 2 }), waits(6_001, { model: 'other' }));
    expect(offered(line, (num) => num > 5_000)).to.deep.equal([1, 6_000, 6_001]);
    expect(line.size).to.equal(5_000);
    expect(offered(line, (num) => num < 3)).to.deep.equal([1, 2, 3]);
  });

  it('drops the attempt that gave up, not a later one', () => {
    const line = lineOf(waits(1), waits(2));
    line.add(waits(1, { attempt: 2 }), 1);
    line.drop(1, 1);
    line.drop(2, 1);
    line.drop(7, 1);
    expect(offered(line, () => true)).to.deep.equal([1]);
  });
});
