import { expect } from 'chai';
import { StoredTimes } from '../../transport/nats/stored-times.js';

describe('the times at which a broker stored what is read', () => {
  it('tell a clock that was put back from one that is slewed, and each step once', () => {
    const times = new StoredTimes();
    const stepped = [1_000, 1_001, 900, 5_000, 2_000, 2_001, 2_000].map((storedAt) => times.steppedBack(storedAt));
    expect(stepped).to.deep.equal([false, false, false, false, true, false, false]);
  });
});
