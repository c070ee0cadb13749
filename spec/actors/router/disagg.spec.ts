import { expect } from 'chai';
import {
  type DisaggFacts,
  type DisaggPolicy,
  decodeFirstConfig,
  disaggConfig,
  disaggregate,
  prefillBusy,
  wantsRemotePrefill,
} from '../../../actors/router/disagg.js';

const facts = (over: Partial<DisaggFacts> = {}): DisaggFacts => ({
  promptTokens: 4_000,
  cachedTokens: 0,
  prefillBusy: false,
  decodeBlocks: 10,
  decodeCapacityBlocks: 100,
  ...over,
});

describe('conditional disaggregation', () => {
  it('decides by each policy as its table says, every cell', () => {
    const short = { promptTokens: 4_000, cachedTokens: 2_000 };
    const busy = { prefillBusy: true };
    const rows: [DisaggPolicy, Partial<DisaggFacts>, boolean, string][] = [
      ['always', { ...short, ...busy }, true, 'policy'],
      ['isl_bounding', {}, true, 'long'],
      ['isl_bounding', busy, true, 'long'],
      ['isl_bounding', short, false, 'short'],
      ['prefill_load', short, true, 'prefill-free'],
      ['prefill_load', busy, false, 'prefill-busy'],
      ['prefill_load', { prefillBusy: undefined }, true, 'prefill-free'],
      ['isl_or_load', {}, true, 'long-and-prefill-free'],
      ['isl_or_load', short, false, 'short'],
      ['isl_or_load', busy, false, 'prefill-busy'],
    ];
    for (const [policy, given, remote, reason] of rows) {
      expect(disaggregate(facts(given), disaggConfig({ policy })), `${policy} ${reason}`).to.include({
        remote,
        reason,
      });
    }
  });

  it('takes a prompt for short only if both its uncached length and its share are below the bounds', () => {
    const config = disaggConfig({ policy: 'isl_bounding' });
    const remote = (promptTokens: number, cachedTokens: number) =>
      disaggregate(facts({ promptTokens, cachedTokens }), config).remote;
    expect(remote(10_000, 10_000 - 2_047)).to.equal(false);
    expect(remote(10_000, 10_000 - 2_048)).to.equal(true);
    expect(remote(1_000, 301)).to.equal(false);
    expect(remote(1_000, 300)).to.equal(true);
    expect(disaggregate(facts({ promptTokens: 100, cachedTokens: 128 }), config)).to.include({
      remote: false,
      uncachedTokens: 0,
    });
  });

  it('never gives a prompt to a decode worker that would be too full, or does not say how full it is', () => {
    const config = disaggConfig({ policy: 'isl_or_load', decodeBusyShare: 0.8 });
    const at = (decodeBlocks: number, decodeCapacityBlocks: number | undefined) =>
      disaggregate(facts({ prefillBusy: true, decodeBlocks, decodeCapacityBlocks }), config).reason;
    expect(at(80, 100)).to.equal('prefill-busy');
    expect(at(81, 100)).to.equal('decode-busy');
    expect(at(0, undefined)).to.equal('decode-busy');
  });

  it('knows the older rule: longer than the local limit, and the prefill queue not full', () => {
    const config = decodeFirstConfig();
    expect(wantsRemotePrefill(1_000, 0, 0, config)).to.equal(false);
    expect(wantsRemotePrefill(1_001, 0, 1, config)).to.equal(true);
    expect(wantsRemotePrefill(1_001, 1, 0, config)).to.equal(false);
    expect(wantsRemotePrefill(9_999, 0, 2, config)).to.equal(false);
  });

  it('calls a worker busy over either threshold, and never without one', () => {
    expect(prefillBusy(1_000_000, 8_192, {})).to.equal(false);
    expect(prefillBusy(500, 8_192, { tokens: 500 })).to.equal(false);
    expect(prefillBusy(501, 8_192, { tokens: 500 })).to.equal(true);
    expect(prefillBusy(4_097, 8_192, { share: 0.5 })).to.equal(true);
    expect(prefillBusy(4_096, 8_192, { share: 0.5 })).to.equal(false);
    expect(prefillBusy(1_000_000, undefined, { share: 0.5 })).to.equal(false);
  });

  it('refuses thresholds that are out of range, by name', () => {
    expect(() => disaggConfig({ maxLocalShare: 1.1 })).to.throw(RangeError, 'maxLocalShare');
    expect(() => disaggConfig({ decodeBusyShare: -0.1 })).to.throw(RangeError, 'decodeBusyShare');
    expect(() => disaggConfig({ maxLocalTokens: 1.5 })).to.throw(RangeError, 'maxLocalTokens');
    expect(() => disaggConfig({ policy: 'sometimes' as DisaggPolicy })).to.throw(RangeError, 'sometimes');
    expect(() => decodeFirstConfig({ maxPrefillQueueSize: -1 })).to.throw(RangeError, 'maxPrefillQueueSize');
  });
});
