/**
 * The vocabulary of the mock engine: no file, no merges, reversible by construction.
 *
 *     0 …   255   one byte each
 *   256,257,258   <|endoftext|>  <|im_start|>  <|im_end|>
 *   260 …   275   halves of eight characters: 260+2k is the head of character k, 261+2k its tail
 *   512 … 49999   ` tok<id>`
 *
 * Text becomes words where it spells them and bytes elsewhere, so the pieces of `tokenize(text)` always add up to the bytes
 * of `text`. The halves exist for detokenizers: the engine emits a head and its tail as two tokens, and neither is valid
 * UTF-8 by itself.
 */
import type { Vocabulary } from './vocabulary.js';

export const mockVocabularySize = 50_000;
export const mockFirstWord = 512;
export const mockFirstHalf = 260;
/** Characters of two to four bytes, each cut after its first byte or in its middle. */
const splitCharacters = ['é', 'ß', 'ж', '中', '語', '€', '😀', '🚀'] as const;
export const mockSplitCount = splitCharacters.length;

const specials: ReadonlyMap<string, number> = new Map([
  ['<|endoftext|>', 256],
  ['<|im_start|>', 257],
  ['<|im_end|>', 258],
]);

const chatml = `{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}`;

const words = / tok([1-9]\d{2,4})(?!\d)/g;
const wordsAndSpecials = /<\|(?:endoftext|im_start|im_end)\|>| tok([1-9]\d{2,4})(?!\d)/g;

/** Id of a match, or -1 when the number is outside the vocabulary. */
function idOf(match: RegExpExecArray): number {
  if (match[1] === undefined) return specials.get(match[0]) ?? -1;
  const id = Number(match[1]);
  return id >= mockFirstWord && id < mockVocabularySize ? id : -1;
}

function tokenize(text: string, special: boolean): Uint32Array {
  const pattern = special ? wordsAndSpecials : words;
  pattern.lastIndex = 0;
  const out: Uint32Array[] = [];
  let done = 0;
  for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
    const id = idOf(match);
    if (id < 0) continue;
    if (match.index > done) out.push(Uint32Array.from(Buffer.from(text.slice(done, match.index))));
    out.push(Uint32Array.of(id));
    done = match.index + match[0].length;
  }
  if (out.length === 0) return Uint32Array.from(Buffer.from(text));
  if (done < text.length) out.push(Uint32Array.from(Buffer.from(text.slice(done))));
  const tokens = new Uint32Array(out.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of out) {
    tokens.set(part, at);
    at += part.length;
  }
  return tokens;
}

function pieces(): (id: number) => Uint8Array {
  const empty = new Uint8Array(0);
  const bytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
  const halves = splitCharacters.flatMap((character) => {
    const whole = Uint8Array.from(Buffer.from(character));
    const cut = Math.floor(whole.length / 2);
    return [whole.slice(0, cut), whole.slice(cut)];
  });
  // Words are made on demand: a gateway that never sees one never pays for 49,488 of them.
  const made = new Map<number, Uint8Array>();
  return (id) => {
    if (id < 256) return bytes[id] ?? empty;
    if (id < mockFirstWord) return halves[id - mockFirstHalf] ?? empty;
    if (id >= mockVocabularySize) return empty;
    let word = made.get(id);
    if (word === undefined) {
      word = Uint8Array.from(Buffer.from(` tok${id}`));
      made.set(id, word);
    }
    return word;
  };
}

/** The mock model's vocabulary: 50,000 ids, ChatML, 32,768 tokens of context. Needs no file and cannot fail. */
export function openMockVocabulary(model = 'mock'): Vocabulary {
  return {
    model,
    size: mockVocabularySize,
    chatTemplate: chatml,
    contextTokens: 32_768,
    bosToken: '',
    eosToken: '<|im_end|>',
    endTokens: new Set([256, 258]),
    tokenize: (text, options) => tokenize(text, options.special),
    piece: pieces(),
  };
}
