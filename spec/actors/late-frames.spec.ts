import { expect } from 'chai';
import { PoisonList } from '../../actors/frontend/poison.js';
import { createFleet, prepared } from './fleet.js';

describe('frames of the dead', () => {
  it('that come late are counted as stale and bring nobody back', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2 });
    const all = Array.from({ length: 4 }, () => fleet.submit(prepared()).seen);
    await fleet.run(10_000, () => all.every(({ ends }) => ends > 0));
    expect((await fleet.facts()).peers).to.be.greaterThan(0);
    for (const worker of ['decode-0-a', 'decode-1-a']) fleet.killWorker(worker);
    await fleet.run(10);
    const { stale } = await fleet.facts();
    const item = { num: 1, attempt: 1, choice: 0, position: 50, tokens: [7], finish: 0 };
    fleet.kernel.tell(fleet.frontend, { type: 'Frame', frame: { worker: 'decode-0-a', seq: 99, items: [item] } });
    const facts = await fleet.facts();
    expect(facts.peers).to.equal(0);
    expect(facts.stale).to.equal(stale + 1);
  });
});

describe('the list of poison prompts', () => {
  it('counts what is kept out now, not what once was', () => {
    const list = new PoisonList();
    list.add(1n, 0);
    list.add(2n, 60_000);
    expect(list.count(599_999)).to.equal(2);
    expect(list.count(600_000)).to.equal(1);
    expect(list.has(2n, 600_000)).to.equal(true);
    expect(list.count(660_000)).to.equal(0);
  });
});
