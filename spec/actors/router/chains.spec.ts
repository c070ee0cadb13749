import { expect } from 'chai';
import fc from 'fast-check';
import { Chains, type Stretch } from '../../../actors/router/chains.js';

/** As block hashes are: each names everything before it. */
function chain(steps: readonly number[]): BigUint64Array {
  let hash = 0x51f2_9a77_0c3en;
  return BigUint64Array.from(steps, (step) => {
    hash = BigInt.asUintN(64, (hash ^ BigInt(step + 1)) * 0x9e37_79b9_7f4a_7c15n);
    return hash ^ (hash >> 29n);
  });
}

interface Model {
  readonly holder: string;
  readonly hashes: BigUint64Array;
  readonly end: Stretch<string> | undefined;
}

const heldBy = (model: readonly Model[], holder: string) =>
  new Set(model.filter((each) => each.holder === holder).flatMap(({ hashes }) => [...hashes]));

describe('chains of hashes', () => {
  it('say who holds how much of a prompt and what each hold and release changes, as plain sets do', () => {
    const steps = fc.array(fc.nat(2), { maxLength: 9 });
    const action = fc.record({ hold: fc.boolean(), holder: fc.constantFrom('a', 'b', 'c'), steps, which: fc.nat(50) });
    fc.assert(
      fc.property(fc.array(action, { maxLength: 50 }), steps, (actions, asked) => {
        const chains = new Chains<string>();
        const model: Model[] = [];
        for (const { hold, holder, steps: given, which } of actions) {
          if (hold) {
            const hashes = chain(given);
            const before = heldBy(model, holder);
            const made = chains.hold(hashes, holder);
            expect(made?.fresh ?? 0).to.equal([...hashes].filter((hash) => !before.has(hash)).length);
            model.push({ holder, hashes, end: made?.end });
          } else if (model.length > 0) {
            const [gone] = model.splice(which % model.length, 1) as [Model];
            if (gone.end === undefined) continue;
            const left = heldBy(model, gone.holder);
            const lost = [...gone.hashes].filter((hash) => !left.has(hash)).length;
            expect(chains.release(gone.end, gone.holder)).to.equal(lost);
          }
          expect(chains.size).to.be.at.most(2 * model.length);
        }
        const prompt = chain(asked);
        const found = new Map<string, number>();
        chains.find(prompt, (holder, count) => found.set(holder, count));
        for (const holder of ['a', 'b', 'c']) {
          const held = heldBy(model, holder);
          expect(found.get(holder) ?? 0).to.equal([...prompt].filter((hash) => held.has(hash)).length);
        }
        for (const { end, holder } of model) if (end !== undefined) chains.release(end, holder);
        expect(chains.size).to.equal(0);
      }),
      { numRuns: 500 },
    );
  });

  it('cost a prompt of any length a few comparisons, however many hold it', () => {
    const chains = new Chains<number>();
    const prompt = chain(Array.from({ length: 16_000 }, (_, n) => n % 7));
    for (let holder = 0; holder < 1_000; holder++) chains.hold(prompt, holder);
    expect(chains.size).to.equal(1);
    const before = process.cpuUsage();
    for (let n = 0; n < 1_000; n++) {
      const { end } = chains.hold(prompt, n) as { end: Stretch<number> };
      chains.release(end, n);
    }
    const { user, system } = process.cpuUsage(before);
    expect((user + system) / 1_000, 'microseconds per hold and release').to.be.below(50);
  });
});
