import { expect } from 'chai';
import fc from 'fast-check';
import { createDetokenizers, createModelRegistry } from '../../gateway/index.js';
import { openMockVocabulary, type Vocabulary } from '../../gpu/index.js';

/** A vocabulary whose token i is the i-th of some byte strings. */
function vocabularyOf(pieces: readonly Uint8Array[]): Vocabulary {
  return {
    ...openMockVocabulary('pieces'),
    size: pieces.length,
    piece: (token) => pieces[token] ?? new Uint8Array(0),
  };
}

function detokenize(pieces: readonly Uint8Array[], check: (text: string) => void = () => undefined): string {
  const models = createModelRegistry();
  models.add(vocabularyOf(pieces));
  const detokenizer = createDetokenizers(models).open('pieces');
  let text = '';
  for (const token of pieces.keys()) {
    const part = detokenizer.push(token);
    check(part);
    text += part;
  }
  return text + detokenizer.end();
}

const decode = (bytes: Uint8Array) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);

/** Cuts bytes at the given places. */
function cut(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const at = [...new Set(places.map((place) => place % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...at].map((start, index) => bytes.slice(start, at[index] ?? bytes.length));
}

describe('Detokenizer', () => {
  it('gives the same text however the bytes are cut into tokens, valid or not', () => {
    const text = fc.string({ unit: 'binary' }).map((value) => Buffer.from(value));
    const noise = fc.uint8Array({ maxLength: 40 });
    const tricky = fc.array(
      fc.constantFrom(
        0xc3,
        0xa9,
        0xe2,
        0x82,
        0xac,
        0xf0,
        0x9f,
        0x98,
        0x80,
        0xed,
        0xa0,
        0xf4,
        0x90,
        0xc0,
        0xff,
        0x41,
        0xef,
        0xbb,
        0xbf,
      ),
      { maxLength: 30 },
    );
    const bytes = fc.oneof(
      text,
      noise,
      tricky.map((list) => Uint8Array.from(list)),
    );
    fc.assert(
      fc.property(bytes, fc.array(fc.nat(200), { maxLength: 20 }), (whole, places) => {
        expect(detokenize(cut(Uint8Array.from(whole), places))).to.equal(decode(Uint8Array.from(whole)));
      }),
      { numRuns: 2000 },
    );
  });

  it('never shows half a character: of valid text no part has U+FFFD or a lone surrogate', () => {
    // U+FFFD is a character too, and may be in what is generated: here it would look like a broken one.
    const valid = fc.string({ unit: 'grapheme' }).filter((text) => !text.includes('\ufffd'));
    fc.assert(
      fc.property(valid, fc.array(fc.nat(200), { maxLength: 30 }), (whole, places) => {
        const pieces = cut(Buffer.from(whole), places);
        const text = detokenize(pieces, (part) => expect(part).not.to.match(/\ufffd|\p{Surrogate}/u));
        expect(text).to.equal(whole);
      }),
      { numRuns: 1000 },
    );
  });

  it('flushes half a character as U+FFFD, once', () => {
    const models = createModelRegistry();
    models.add(openMockVocabulary('mock'));
    const detokenizer = createDetokenizers(models).open('mock');
    expect(detokenizer.push(0xf0) + detokenizer.push(0x9f)).to.equal('');
    expect(detokenizer.end()).to.equal('\ufffd');
    expect(detokenizer.end()).to.equal('');
    expect(detokenizer.push(0x41)).to.equal('A');
  });

  it('shows control tokens and ids outside the vocabulary as nothing, and an unknown model as silence', () => {
    const models = createModelRegistry();
    models.add(openMockVocabulary('mock'));
    const detokenizer = createDetokenizers(models).open('mock');
    for (const token of [257, 258, 50_000, 2 ** 32, -1]) expect(detokenizer.push(token)).to.equal('');
    expect(createDetokenizers(models).open('nobody').push(65)).to.equal('');
    models.remove('mock');
    expect(createDetokenizers(models).open('mock').push(65)).to.equal('A');
  });
});
