import { expect } from 'chai';
import { livesOf, runAgain, taped, turnsOf } from './tape-kit.js';

describe('The tape', () => {
  it('has all that it takes to run router, frontend, registry and journal again, whatever fails around them', async () => {
    let entries = 0;
    for (const seed of [3, 7, 11, 19, 23]) {
      const { result, tapes } = await taped(seed);
      expect(result.violations).to.deep.equal([]);
      for (const [, records] of tapes) {
        for (const [, life] of livesOf(turnsOf(records))) {
          entries += life.length;
          expect(runAgain(life), `seed ${seed}`).to.equal(undefined);
        }
      }
    }
    expect(entries).to.be.above(5_000);
  });
});
