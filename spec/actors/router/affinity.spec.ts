import { expect } from 'chai';
import { SessionAffinity } from '../../../actors/router/affinity.js';

describe('session affinity', () => {
  it('remembers where a session was served until it is idle for the TTL', () => {
    const affinity = new SessionAffinity({ ttlMs: 1_000, limit: 10 });
    affinity.bind('s', { prefill: 'p1', decode: 'd1' }, 0);
    expect(affinity.find('s', 999)).to.include({ prefill: 'p1', decode: 'd1' });
    affinity.bind('s', { prefill: 'p1', decode: 'd1' }, 900);
    expect(affinity.find('s', 1_899)?.decode).to.equal('d1');
    expect(affinity.find('s', 1_900)).to.equal(undefined);
    expect(affinity.size).to.equal(0);
  });

  it('forgets the session that was used longest ago when there are too many', () => {
    const affinity = new SessionAffinity({ ttlMs: 1_000, limit: 2 });
    affinity.bind('a', { prefill: undefined, decode: 'd1' }, 0);
    affinity.bind('b', { prefill: undefined, decode: 'd1' }, 1);
    affinity.bind('a', { prefill: undefined, decode: 'd1' }, 2);
    affinity.bind('c', { prefill: undefined, decode: 'd1' }, 3);
    expect(affinity.find('b', 4)).to.equal(undefined);
    expect(affinity.find('a', 4)?.decode).to.equal('d1');
    expect(affinity.size).to.equal(2);
  });

  it('lets every session of a worker that is gone choose anew', () => {
    const affinity = new SessionAffinity({ ttlMs: 1_000, limit: 10 });
    affinity.bind('a', { prefill: 'p1', decode: 'd1' }, 0);
    affinity.bind('b', { prefill: 'p2', decode: 'd1' }, 0);
    affinity.bind('c', { prefill: 'p2', decode: 'd2' }, 0);
    affinity.workerGone('p1');
    affinity.workerGone('d2');
    expect(affinity.find('a', 1)).to.equal(undefined);
    expect(affinity.find('b', 1)?.prefill).to.equal('p2');
    expect(affinity.find('c', 1)).to.equal(undefined);
  });
});
