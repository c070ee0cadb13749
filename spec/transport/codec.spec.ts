import { expect } from 'chai';
import fc from 'fast-check';
import {
  address,
  bodies,
  decodeCbor,
  decodeEnvelope,
  decodeStep,
  encodeCbor,
  encodeStep,
  type FrameItem,
  isStepFrame,
  matches,
  NetError,
  netErrors,
  type StepFrame,
} from '../../transport/index.js';

const count = fc.oneof(fc.nat(300), fc.nat(), fc.maxSafeNat());
const token = fc.oneof(fc.nat(300), fc.integer({ min: 0, max: 0xffff_ffff }));
const item: fc.Arbitrary<FrameItem> = fc
  .record({
    num: count,
    attempt: fc.nat(1000),
    choice: fc.nat(127),
    position: count,
    finish: fc.nat(4),
    tokens: fc.array(token, { maxLength: 40 }),
    cached: fc.option(count, { nil: undefined }),
    withLogprobs: fc.boolean(),
    value: fc.double({ noNaN: true }),
  })
  .map(({ withLogprobs, value, cached, ...rest }) => ({
    ...rest,
    ...(cached !== undefined && { cached }),
    ...(withLogprobs && {
      logprobs: rest.tokens.map((t) => [value, [[t, value] as const, [0, -1.5] as const]] as const),
    }),
  }));
const frame: fc.Arbitrary<StepFrame> = fc.record({
  worker: fc.stringMatching(/^[A-Za-z0-9_-]{1,64}$/),
  seq: count,
  items: fc.array(item, { maxLength: 20 }),
});

describe('A step frame', () => {
  it('reads back as it was written', () => {
    fc.assert(
      fc.property(frame, (f) => {
        expect(decodeStep(encodeStep(f))).to.deep.equal(f);
      }),
      { numRuns: 300 },
    );
  });

  it('is CBOR that any decoder can read', () => {
    fc.assert(
      fc.property(frame, (f) => {
        // This decoder shows 64-bit integers as BigInt.
        const read = JSON.parse(
          JSON.stringify(decodeCbor(encodeStep(f)), (_, v) => (typeof v === 'bigint' ? Number(v) : v)),
        );
        const items = f.items.map((i) => [
          i.num,
          i.attempt,
          i.choice,
          i.position,
          i.finish,
          i.tokens,
          i.cached ?? null,
          i.logprobs ?? null,
        ]);
        expect(read).to.deep.equal(JSON.parse(JSON.stringify([1, f.worker, f.seq, ...items])));
      }),
      { numRuns: 100 },
    );
  });

  it('that is cut short or altered is refused or read as a frame, and never thrown', () => {
    fc.assert(
      fc.property(frame, fc.nat(), fc.nat(255), fc.boolean(), (f, where, byte, cut) => {
        const bytes = encodeStep(f);
        const at = where % bytes.length;
        if (cut) {
          expect(decodeStep(bytes.subarray(0, at))).to.be.a('string');
          return;
        }
        bytes[at] = byte;
        const read = decodeStep(bytes);
        if (typeof read !== 'string')
          expect(read.items.every((i) => i.tokens.every(Number.isSafeInteger))).to.equal(true);
      }),
      { numRuns: 500 },
    );
  });

  it('of random bytes is refused without reserving what it claims to need', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
        decodeStep(Uint8Array.of(0x9a, 0x00, 0x00, 0xff, 0xff, 0x01, ...bytes));
        decodeStep(bytes);
      }),
    );
    expect(decodeStep(Uint8Array.of(0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))).to.be.a('string');
  });

  it('is told from an envelope by its first byte', () => {
    expect(isStepFrame(encodeStep({ worker: 'w', seq: 1, items: [] }))).to.equal(true);
    expect(isStepFrame(encodeCbor({ v: 1 }))).to.equal(false);
    expect(isStepFrame(new Uint8Array(0))).to.equal(false);
  });

  it('of 64 items takes less than 20 bytes an item', () => {
    const items = Array.from({ length: 64 }, (_, i) => ({
      num: 1000 + i,
      attempt: 1,
      choice: 0,
      position: 300 + i,
      tokens: [31_000 + i],
      finish: 0,
    }));
    expect(encodeStep({ worker: 'decode-0-m3k9x2', seq: 12_345, items }).length).to.be.lessThan(64 * 20);
  });
});

describe('The envelope codec', () => {
  it('never throws on any bytes, and says what is wrong', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        const read = decodeEnvelope(bytes);
        if (!read.ok) expect(netErrors).to.have.property(read.fault.code);
      }),
      { numRuns: 1_000 },
    );
  });

  it('never throws on maps of any values, whatever type they claim', () => {
    const type = fc.constantFrom(...Object.keys(bodies), 'toString', '__proto__', 'Chunk');
    const value = fc.record(
      { v: fc.constant(1), type, body: fc.object(), from: fc.string(), seq: fc.anything() },
      { requiredKeys: ['v'] },
    );
    fc.assert(
      fc.property(value, (v) => {
        expect(decodeEnvelope(encodeCbor(v)).ok).to.equal(false);
      }),
      { numRuns: 500 },
    );
  });

  it('refuses by size before it parses', () => {
    const read = decodeEnvelope(new Uint8Array(2_000), 1_000);
    expect(read.ok ? '' : read.fault.code).to.equal('NET_TOO_LARGE');
  });

  it('keeps tokens as 32-bit arrays and large numbers exact', () => {
    const value = { tokens: Uint32Array.of(1, 4_294_967_295), big: Number.MAX_SAFE_INTEGER, hash: 2n ** 63n };
    expect(decodeCbor(encodeCbor(value))).to.deep.equal(value);
  });
});

describe('Subjects and addresses', () => {
  it('match as the broker matches', () => {
    expect(matches('a.*.c', 'a.b.c')).to.equal(true);
    expect(matches('a.>', 'a.b.c')).to.equal(true);
    expect(matches('a.>', 'a')).to.equal(false);
    expect(matches('a.*', 'a.b.c')).to.equal(false);
    expect(matches('a.b.c', 'a.b')).to.equal(false);
  });

  it('let no wildcard or dot into an address', () => {
    for (const bad of ['*', 'a.b', '>', '', 'a b']) expect(() => address('decode', bad, 'worker')).to.throw(TypeError);
  });
});

describe('The table of network errors', () => {
  it('fills its templates and keeps the cause', () => {
    const cause = new Error('why');
    const error = new NetError('NET_TOO_LARGE', { bytes: 3, limit: 2, what: 'x' }, cause);
    expect(error.message).to.equal('3 bytes exceed the limit of 2: x');
    expect(error.cause).to.equal(cause);
    expect(Object.keys(netErrors).every((code) => code.startsWith('NET_'))).to.equal(true);
  });
});
