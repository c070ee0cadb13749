import { expect } from 'chai';
import fc from 'fast-check';
import {
  admit,
  delayMs,
  endsSupervisor,
  failuresInARow,
  type Member,
  nextStep,
  plan,
  restarted,
  type Strategy,
} from '../../supervisors/otp/decisions.js';
import type { RestartType } from '../../supervisors/otp/index.js';

describe('otp: decisions', () => {
  const cells: readonly (readonly [RestartType, string, boolean])[] = [
    ['permanent', 'normal', true],
    ['permanent', 'shutdown', true],
    ['permanent', 'killed', true],
    ['permanent', 'error', true],
    ['transient', 'normal', false],
    ['transient', 'shutdown', false],
    ['transient', 'killed', true],
    ['transient', 'error', true],
    ['temporary', 'normal', false],
    ['temporary', 'shutdown', false],
    ['temporary', 'killed', false],
    ['temporary', 'error', false],
  ];
  for (const [restart, reason, again] of cells) {
    it(`a ${restart} child that ends with ${reason} is ${again ? '' : 'not '}restarted`, () => {
      expect(restarted[restart][reason as 'normal']).to.equal(again);
    });
  }

  const names = ['a', 'b', 'c', 'd'];
  const plans: readonly (readonly [Strategy, string, string, string])[] = [
    ['one_for_one', 'b', '', 'b'],
    ['dynamic', 'b', '', 'b'],
    ['one_for_all', 'a', 'dcb', 'abcd'],
    ['one_for_all', 'b', 'dca', 'abcd'],
    ['one_for_all', 'd', 'cba', 'abcd'],
    ['rest_for_one', 'a', 'dcb', 'abcd'],
    ['rest_for_one', 'b', 'dc', 'bcd'],
    ['rest_for_one', 'd', '', 'd'],
  ];
  for (const [strategy, failed, stop, start] of plans) {
    it(`${strategy}: when ${failed} of abcd fails, it stops ‹${stop}› and starts ‹${start}›, in this order`, () => {
      expect(plan(strategy, names, failed, () => false)).to.deep.equal({ stop: [...stop], start: [...start] });
    });
  }

  it('stops temporary siblings with the others but does not start them again', () => {
    expect(plan('one_for_all', names, 'b', (name) => name === 'c')).to.deep.equal({
      stop: ['d', 'c', 'a'],
      start: ['a', 'b', 'd'],
    });
  });

  it('gives up at one restart more than the intensity within the period, and not at the intensity', () => {
    const limit = { intensity: 2, periodMs: 1000 };
    const first = admit([], 0, limit);
    const second = admit(first.times, 999, limit);
    const third = admit(second.times, 1000, limit);
    expect([first.within, second.within, third.within]).to.deep.equal([true, true, false]);
    expect(admit(second.times, 1001, limit)).to.deep.equal({ within: true, times: [999, 1001] });
    expect(admit([], 0, { intensity: 0, periodMs: 1000 }).within).to.equal(false);
  });

  it('never remembers more restarts than the intensity allows, plus one', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(3000), { maxLength: 50 }), fc.nat(5), (gaps, intensity) => {
        let times: readonly number[] = [];
        let now = 0;
        for (const gap of gaps) {
          now += gap;
          const admitted = admit(times, now, { intensity, periodMs: 1000 });
          expect(admitted.times.length).to.be.at.most(intensity + 1);
          if (!admitted.within) return;
          times = admitted.times;
        }
      }),
    );
  });

  it('doubles the back-off up to its maximum, with jitter on top', () => {
    const backoff = { minMs: 100, maxMs: 1000, jitter: 0.5, quietMs: 5000 };
    expect([0, 1, 2, 3, 4, 1100].map((failures) => delayMs(failures, backoff, 0))).to.deep.equal([
      100, 200, 400, 800, 1000, 1000,
    ]);
    expect(delayMs(0, backoff, 0.5)).to.equal(125);
    expect(delayMs(9, { ...backoff, minMs: 0 }, 0.5)).to.equal(0);
  });

  it('forgets earlier failures after a life as long as the quiet time, and not before', () => {
    expect([4999, 5000, undefined].map((lived) => failuresInARow(3, lived, 5000))).to.deep.equal([3, 0, 3]);
  });

  it('ends the supervisor as autoShutdown says', () => {
    const table = (['never', 'any_significant', 'all_significant'] as const).map((auto) => [
      endsSupervisor(auto, true),
      endsSupervisor(auto, false),
    ]);
    expect(table).to.deep.equal([
      [false, false],
      [true, true],
      [false, true],
    ]);
  });

  describe('the next step of a repair', () => {
    const member = (name: string, flags: string): Member & { readonly name: string } => ({
      name,
      live: flags.includes('l'),
      doomed: flags.includes('d'),
      wanted: flags.includes('w'),
    });
    const step = (members: Record<string, string>, now = 10, notBefore = 0): string => {
      const next = nextStep(
        Object.entries(members).map(([name, flags]) => member(name, flags)),
        now,
        notBefore,
      );
      return 'member' in next
        ? `${next.kind} ${next.member.name}`
        : 'ms' in next
          ? `${next.kind} ${next.ms}`
          : next.kind;
    };

    it('stops the last doomed child first, even during the back-off', () => {
      expect(step({ a: 'ldw', b: 'w', c: 'ld', d: 'lw' }, 0, 5)).to.equal('stop c');
    });
    it('waits for the back-off before any start', () => {
      expect(step({ a: 'lw', b: 'w' }, 4, 5)).to.equal('wait 1');
    });
    it('starts the first missing child, once nobody is doomed', () => {
      expect(step({ a: 'lw', b: 'w', c: 'w' }, 5, 5)).to.equal('start b');
    });
    it('is nothing when all that are wanted live, without waiting', () => {
      expect(step({ a: 'lw', b: '', c: 'd' }, 0, 5)).to.equal('done');
    });
  });
});
