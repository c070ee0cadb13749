import { expect } from 'chai';
import fc from 'fast-check';
import { stopScanner } from '../../actors/frontend/stop-strings.js';

/** The definition: the text before the first occurrence of any stop string. */
function model(text: string, stops: readonly string[]): { text: string; stopped: boolean } {
  const hits = stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
  return hits.length === 0 ? { text, stopped: false } : { text: text.slice(0, Math.min(...hits)), stopped: true };
}

function scan(pieces: readonly string[], stops: readonly string[]): { text: string; stopped: boolean } {
  const scanner = stopScanner(stops);
  let out = '';
  for (const piece of pieces) {
    const { text, stopped } = scanner.push(piece);
    out += text;
    if (stopped !== undefined) {
      expect(stops).to.include(stopped);
      return { text: out, stopped: true };
    }
  }
  return { text: out + scanner.end(), stopped: false };
}

const letters = (minLength: number, maxLength: number) =>
  fc.array(fc.constantFrom('a', 'b', 'c'), { minLength, maxLength }).map((chars) => chars.join(''));

describe('stop strings', () => {
  it('cut the text at the first one, however the text is cut into pieces', () => {
    const stops = fc.array(letters(1, 4), { minLength: 1, maxLength: 3 });
    fc.assert(
      fc.property(fc.array(letters(0, 5), { maxLength: 12 }), stops, (pieces, list) => {
        const got = scan(pieces, list);
        const whole = model(pieces.join(''), list);
        // Pieces decide which of two overlapping stop strings is complete first; what comes out never holds one.
        expect(got.stopped).to.equal(whole.stopped);
        if (!whole.stopped) expect(got.text).to.equal(whole.text);
        for (const stop of list) expect(got.text.includes(stop)).to.equal(false);
      }),
      { numRuns: 2_000 },
    );
  });

  it('with one stop string give exactly the text before it', () => {
    fc.assert(
      fc.property(fc.array(letters(0, 5), { maxLength: 12 }), letters(1, 5), (pieces, stop) => {
        expect(scan(pieces, [stop])).to.deep.equal(model(pieces.join(''), [stop]));
      }),
      { numRuns: 2_000 },
    );
  });

  it('hold back no more than what may still become a stop string', () => {
    const scanner = stopScanner(['END']);
    expect(scanner.push('fine E')).to.deep.equal({ text: 'fine ', stopped: undefined });
    expect(scanner.push('N')).to.deep.equal({ text: '', stopped: undefined });
    expect(scanner.push('d')).to.deep.equal({ text: 'ENd', stopped: undefined });
  });
});
