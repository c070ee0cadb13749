/**
 * Tokens to text, one choice at a time. Most tokens are whole characters: their text is looked up. The others are joined
 * byte by byte; what is not yet a character is held back, at most three bytes. The text is the same however the tokens
 * cut it: that of decoding all bytes at once, U+FFFD for each broken sequence.
 */
import type { Detokenizer, DetokenizerFactory } from '../actors/index.js';
import type { Vocabulary } from '../gpu/index.js';
import type { ModelRegistry } from './models.js';

// A byte order mark in the middle of an answer is a character like any other.
const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
const nothing = new Uint8Array(0);

/** The text of every token seen so far. Filled on demand: 50,000 pieces at once would stall the event loop. */
export class PieceTable {
  readonly #vocabulary: Vocabulary;
  /** A string: whole characters. False: bytes that need their neighbours. */
  readonly #texts: (string | false | undefined)[] = [];

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary;
  }

  /** The token's text, or undefined when it is not made of whole characters. */
  text(token: number): string | undefined {
    const known = this.#texts[token];
    if (known !== undefined) return known === false ? undefined : known;
    if (!(token >= 0 && token < this.#vocabulary.size)) return '';
    const bytes = this.#vocabulary.piece(token);
    const text = utf8.decode(bytes);
    // A vocabulary may well have a token for U+FFFD itself, hence the comparison of bytes.
    const whole = !text.includes('\ufffd') || Buffer.from(text).equals(bytes);
    this.#texts[token] = whole ? text : false;
    return whole ? text : undefined;
  }

  bytes(token: number): Uint8Array {
    return token >= 0 && token < this.#vocabulary.size ? this.#vocabulary.piece(token) : nothing;
  }
}

function openDetokenizer(pieces: PieceTable): Detokenizer {
  let held = nothing;
  return {
    push(token) {
      const text = pieces.text(token);
      if (text !== undefined && held.length === 0) return text;
      const piece = pieces.bytes(token);
      if (piece.length === 0) return '';
      const bytes = held.length === 0 ? piece : Buffer.concat([held, piece]);
      const tail = unfinished(bytes);
      held = tail === 0 ? nothing : bytes.slice(bytes.length - tail);
      return tail === bytes.length ? '' : utf8.decode(bytes.subarray(0, bytes.length - tail));
    },
    end() {
      const text = held.length === 0 ? '' : utf8.decode(held);
      held = nothing;
      return text;
    },
  };
}

export function createDetokenizers(models: ModelRegistry): DetokenizerFactory {
  const silent: Detokenizer = { push: () => '', end: () => '' };
  return {
    open(model) {
      const served = models.lookup(model);
      return served === undefined ? silent : openDetokenizer(served.pieces);
    },
  };
}

/** How many bytes at the end are the beginning of a character that may still come: 0 … 3. */
function unfinished(bytes: Uint8Array): number {
  const end = bytes.length;
  for (let back = 1; back <= 3 && back <= end; back++) {
    const byte = bytes[end - back] as number;
    if (byte < 0x80) return 0;
    if (byte >= 0xc0) return canGrow(byte, bytes.subarray(end - back + 1)) ? back : 0;
  }
  return 0;
}

/** Table 3-7 of the Unicode standard: a lead byte limits its first continuation byte. */
function canGrow(lead: number, rest: Uint8Array): boolean {
  if (lead < 0xc2 || lead > 0xf4) return false;
  const need = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  if (rest.length >= need) return false;
  const first = rest[0];
  if (first === undefined) return true;
  const low = lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
  const high = lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
  return first >= low && first <= high;
}
