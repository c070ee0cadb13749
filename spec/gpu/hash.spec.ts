import { expect } from 'chai';
import { blockChecksum, hashFromHex, hashToHex, sequenceHashes } from '../../gpu/index.js';

const tokens = (...ids: number[]): Uint32Array => Uint32Array.from(ids);
const range = (from: number, to: number): Uint32Array => Uint32Array.from({ length: to - from }, (_, i) => from + i);

describe('block hashes', () => {
  it("equal Dynamo's golden vectors for local and chained hashes", () => {
    expect([...sequenceHashes(range(1, 13), 4, '')]).to.deep.equal([
      14643705804678351452n,
      4945711292740353085n,
      12583592247330656132n,
    ]);
    expect(sequenceHashes(tokens(5, 6, 7, 8), 4, '')[0]).to.equal(16777012769546811212n);
    expect(sequenceHashes(tokens(9, 10, 11, 12), 4, '')[0]).to.equal(483935686894639516n);
    expect(sequenceHashes(range(1, 17), 16, '')[0]).to.equal(16863443419780771464n);
    expect(sequenceHashes(range(0, 64), 64, '')[0]).to.equal(3480597578098033343n);
  });

  it("fold the cache salt into the seed as Dynamo's golden vector says", () => {
    expect(sequenceHashes(tokens(1, 2, 3, 4), 4, 'tenant-a')[0]).to.equal(5738685477468498325n);
  });

  it("fold the name of a LoRA in as Dynamo's golden vectors say, beside the salt or without", () => {
    expect(sequenceHashes(tokens(1, 2, 3, 4), 4, '', { lora: 'my-lora' })[0]).to.equal(15671544057904749233n);
    expect(sequenceHashes(tokens(1, 2, 3, 4), 4, 'tenant-a', { lora: 'my-lora' })[0]).to.equal(6157910915076630503n);
  });

  it('name whole blocks only, unless the short last block is asked for', () => {
    expect(sequenceHashes(range(0, 130), 64, '')).to.have.length(2);
    const partial = sequenceHashes(range(0, 130), 64, '', { partial: true });
    expect(partial).to.have.length(3);
    expect([...partial.slice(0, 2)]).to.deep.equal([...sequenceHashes(range(0, 130), 64, '')]);
    expect(sequenceHashes(new Uint32Array(0), 64, '', { partial: true })).to.have.length(0);
  });

  it('of a window into a larger buffer are those of the window', () => {
    expect(sequenceHashes(range(0, 20).subarray(1, 13), 4, '')[2]).to.equal(12583592247330656132n);
  });

  it('refuse a block size that is none', () => {
    for (const size of [0, -1, 1.5, Number.NaN, 2 ** 32]) {
      expect(() => sequenceHashes(tokens(1), size, '')).to.throw(RangeError);
    }
  });

  it('survive the way through hex digits, leading zeros included', () => {
    for (const hash of [0n, 1n, 0xffff_ffff_ffff_ffffn, 14643705804678351452n]) {
      expect(hashToHex(hash)).to.match(/^[0-9a-f]{16}$/);
      expect(hashFromHex(hashToHex(hash))).to.equal(hash);
    }
    expect(() => hashFromHex('xyz')).to.throw(RangeError);
  });

  it('seed the checksum, so that equal bytes of another block differ', () => {
    const bytes = new Uint8Array(1000).fill(7);
    expect(blockChecksum(bytes, 1n)).to.not.equal(blockChecksum(bytes, 2n));
    expect(blockChecksum(bytes, 1n)).to.equal(blockChecksum(bytes.slice(), 1n));
  });
});
