import { expect } from 'chai';
import { type InhibitionConfig, Inhibitions, pairKey } from '../../../actors/router/inhibition.js';

const config: InhibitionConfig = { firstMs: 5_000, longestMs: 60_000 };
const d = 'decode-0-a';

describe('inhibition', () => {
  it('lasts 5 s, then lets one request through as a probe, and all when that was served', () => {
    const inhibitions = new Inhibitions(config);
    inhibitions.failed(d, 'TOKEN_TIMEOUT', 90, 100);
    expect(inhibitions.standing(d, 5_099)).to.equal('out');
    expect(inhibitions.standing(d, 5_100)).to.equal('probe');
    inhibitions.placed(d, 7);
    expect(inhibitions.standing(d, 5_200), 'one at a time').to.equal('out');
    inhibitions.served(d, 6, 5_300);
    expect(inhibitions.standing(d, 5_300), 'another request proves nothing').to.equal('out');
    inhibitions.served(d, 7, 5_400);
    expect(inhibitions.standing(d, 5_400)).to.equal('free');
    expect(inhibitions.list(5_400)).to.deep.equal([]);
  });

  it('lasts twice as long each time a probe fails, up to the cap', () => {
    const inhibitions = new Inhibitions(config);
    let now = 0;
    const lasts: number[] = [];
    for (let num = 1; num <= 6; num++) {
      inhibitions.failed(d, 'ACCEPT_TIMEOUT', now - 1, now);
      lasts.push(inhibitions.until(d) - now);
      now = inhibitions.until(d);
      expect(inhibitions.standing(d, now)).to.equal('probe');
      inhibitions.placed(d, num);
      now += 2_000;
    }
    expect(lasts).to.deep.equal([5_000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    expect(inhibitions.list(now - 3_000)).to.deep.equal([
      { incarnation: d, remainingMs: 1_000, reason: 'ACCEPT_TIMEOUT', times: 6 },
    ]);
  });

  it('counts a failure once, however many requests fail with it', () => {
    const inhibitions = new Inhibitions(config);
    for (let placedAt = 0; placedAt < 100; placedAt++) inhibitions.failed(d, 'STREAM_BROKEN', placedAt, 100 + placedAt);
    expect(inhibitions.until(d)).to.equal(5_100);
    expect(inhibitions.total).to.equal(1);
  });

  it('lets the next request be the probe if the first ended without a verdict', () => {
    const inhibitions = new Inhibitions(config);
    inhibitions.failed(d, 'TOKEN_TIMEOUT', 0, 1);
    inhibitions.placed(d, 1);
    inhibitions.withdrawn(d, 1);
    expect(inhibitions.standing(d, 6_000)).to.equal('probe');
  });

  it('remembers a worker that works and fails by turns, until it has worked for a while', () => {
    const inhibitions = new Inhibitions(config);
    const failAndRecover = (now: number) => {
      inhibitions.failed(d, 'TOKEN_TIMEOUT', now - 1, now);
      const ms = inhibitions.until(d) - now;
      inhibitions.placed(d, now);
      inhibitions.served(d, now, now + ms);
      return ms;
    };
    expect(failAndRecover(10)).to.equal(5_000);
    expect(failAndRecover(6_000)).to.equal(10_000);
    expect(failAndRecover(200_000)).to.equal(5_000);
  });

  it('adds up: a worker that cannot hand over with two partners is out itself, neither partner is', () => {
    for (const [a, b, common] of [
      [pairKey('p', 'd1'), pairKey('p', 'd2'), 'p'],
      [pairKey('p1', d), pairKey('p2', d), d],
    ] as const) {
      const inhibitions = new Inhibitions(config);
      const reason = 'GPU_HANDOFF_MISMATCH';
      inhibitions.failed(a, reason, 0, 1);
      inhibitions.failed(a, reason, 6_000, 6_001);
      expect(inhibitions.standing(common, 6_002), 'twice with the same one').to.equal('free');
      inhibitions.failed(b, reason, 6_000, 6_003);
      const out = inhibitions.list(6_004).map(({ incarnation, prefill }) => prefill ?? incarnation);
      expect(new Set(out)).to.deep.equal(new Set([...[a, b].map((pair) => pair.split('>')[0]), common]));
      expect(inhibitions.standing(common, 6_004)).to.equal('out');
      inhibitions.placed(common, 9);
      expect(inhibitions.standing(common, 11_003)).to.equal('out');
      inhibitions.served(common, 9, 11_004);
      expect(inhibitions.standing(common, 11_005)).to.equal('free');
    }
  });

  it('does not add up what is long past, or has been mended', () => {
    const inhibitions = new Inhibitions(config);
    inhibitions.failed(pairKey('p', 'd1'), 'GPU_HANDOFF_GONE', 0, 1);
    inhibitions.failed(pairKey('p', 'd2'), 'GPU_HANDOFF_GONE', 60_000, 60_001);
    expect(inhibitions.standing('p', 60_002)).to.equal('free');
    inhibitions.placed(pairKey('p', 'd2'), 3);
    inhibitions.served(pairKey('p', 'd2'), 3, 66_000);
    inhibitions.failed(pairKey('p', 'd3'), 'GPU_HANDOFF_GONE', 66_001, 66_002);
    expect(inhibitions.standing('p', 66_003)).to.equal('free');
  });

  it('keeps a pair out without either of the two, and forgets it with either', () => {
    const inhibitions = new Inhibitions(config);
    const pair = pairKey('prefill-0-a', d);
    inhibitions.failed(pair, 'GPU_HANDOFF_MISMATCH', 0, 1);
    expect([pair, 'prefill-0-a', d].map((key) => inhibitions.standing(key, 2))).to.deep.equal(['out', 'free', 'free']);
    expect(inhibitions.list(2)).to.deep.equal([
      { incarnation: d, prefill: 'prefill-0-a', remainingMs: 4_999, reason: 'GPU_HANDOFF_MISMATCH', times: 1 },
    ]);
    inhibitions.forget('prefill-1-a');
    expect(inhibitions.standing(pair, 2)).to.equal('out');
    inhibitions.forget(d);
    expect(inhibitions.standing(pair, 2)).to.equal('free');
  });

  it('is off at 0 ms', () => {
    const inhibitions = new Inhibitions({ firstMs: 0, longestMs: 60_000 });
    inhibitions.failed(d, 'TOKEN_TIMEOUT', 0, 1);
    expect(inhibitions.standing(d, 2)).to.equal('free');
  });
});
