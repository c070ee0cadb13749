import { expect } from 'chai';
import { Caches } from '../../../actors/router/caches.js';

const chain = (...hashes: number[]) => BigUint64Array.from(hashes, BigInt);
const stored = (hashes: BigUint64Array) => [{ op: 'stored', tier: 'device', hashes }] as const;

describe('what a router knows of caches', () => {
  it('is what workers report, and for a while what it has sent them', () => {
    const caches = new Caches({ maxBytes: 8 * 1024 * 1024, assumeMs: 1_000 });
    caches.change('a', 0, stored(chain(1, 2)));
    caches.assume('b', chain(1, 2, 3), 0);
    const found = caches.overlaps(chain(1, 2, 3), 500);
    expect([found.get('a')?.device, found.get('b')?.device]).to.deep.equal([2, 3]);
    expect([...caches.overlaps(chain(1, 2, 3), 1_200).keys()]).to.deep.equal(['a']);
  });

  it('is its own dispatches alone where nobody reports, for their time, anew with each', () => {
    const caches = new Caches({ maxBytes: 1024 * 1024, assumeMs: 10_000, reports: false });
    caches.change('a', 0, stored(chain(1, 2)));
    expect(caches.overlaps(chain(1, 2), 0).size).to.equal(0);
    caches.assume('a', chain(1, 2), 0);
    caches.assume('a', chain(1, 2), 8_000);
    expect(caches.overlaps(chain(1, 2), 15_000).get('a')?.device).to.equal(2);
    expect(caches.overlaps(chain(1, 2), 18_200).size).to.equal(0);
  });

  it('stays within its bytes where nobody reports, and forgets the oldest', () => {
    const caches = new Caches({ maxBytes: 512 * 1024, assumeMs: 1e9, reports: false });
    for (let at = 0; at < 100_000; at++) caches.assume('a', chain(2 * at + 1, 2 * at + 2), at);
    const { bytes, evicted } = caches.stats();
    expect(bytes).to.be.at.most(512 * 1024);
    expect(evicted).to.be.above(0);
    expect(caches.overlaps(chain(199_999, 200_000), 100_000).get('a')?.device).to.equal(2);
  });
});
