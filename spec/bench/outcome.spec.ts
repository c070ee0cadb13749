import { expect } from 'chai';
import { figure, isMet, passes, ratio, table } from '../../bench/outcome.js';
import { interleaved, median, quantile } from '../../bench/statistics.js';

describe('figures of a benchmark', () => {
  it('compare both sides as dynact over peer and meet a target at its very edge', () => {
    const row = ratio('cost', 'cost', 'µs', 16, 10, { atMost: 1.6 });
    expect(row.value).to.equal(1.6);
    expect(isMet(row)).to.equal(true);
    expect(isMet(ratio('cost', 'cost', 'µs', 16.1, 10, { atMost: 1.6 }))).to.equal(false);
    expect(isMet(ratio('rate', 'rate', '/s', 69, 10, { atLeast: 7 }))).to.equal(false);
  });

  it('never meet a target with a value that is no number', () => {
    expect(passes({ figures: [ratio('x', 'x', 's', 0, 0, { atMost: 1 })] })).to.equal(false);
    expect(passes({ figures: [figure('x', 'x', 's', Number.NaN, { atLeast: 1 })] })).to.equal(false);
  });

  it('without a target neither pass nor miss', () => {
    expect(isMet(figure('x', 'x', 's', 1))).to.equal(undefined);
    expect(passes({ figures: [figure('x', 'x', 's', 1)] })).to.equal(true);
  });

  it('print as a table with both sides, the ratio, the target and the verdict', () => {
    const lines = table([
      ratio('a', 'gateway CPU', 'µs/event', 12.34, 10, { atMost: 1.6 }),
      figure('b', 'commands', 'commands', 3.5, { atMost: 3 }),
    ]).split('\n');
    expect(lines).to.have.length(3);
    expect(lines[1]).to.match(/^gateway CPU +12\.3 +10\.0 +µs\/event +1\.23 × +≤ 1\.6 × +pass$/);
    expect(lines[2]).to.match(/^commands +3\.50 +commands +3\.50 +≤ 3 +MISS$/);
  });
});

describe('statistics of repetitions', () => {
  it('take the middle value, and the nearest rank of a quantile', () => {
    expect(median([3, 1, 2])).to.equal(2);
    expect(quantile([1, 2, 3, 4], 0.99)).to.equal(4);
    expect(median([])).to.be.NaN;
  });

  it('run the sides in turn, every other round backwards', async () => {
    const ran: string[] = [];
    const side = (name: string) => async (round: number) => {
      ran.push(`${name}${round}`);
      return round;
    };
    const results = await interleaved(2, { a: side('a'), b: side('b') });
    expect(ran).to.deep.equal(['a0', 'b0', 'b1', 'a1']);
    expect(results).to.deep.equal({ a: [0, 1], b: [0, 1] });
  });
});
