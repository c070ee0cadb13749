import { type Device, loadNative } from './native.js';
import type { Vocabulary } from './vocabulary.js';

export interface VocabularyOptions {
  /** Model id it belongs to. */
  readonly model: string;
  /** GGUF file; only its vocabulary is read. */
  readonly path: string;
  /** @default 'cpu' */
  readonly device?: Device;
}

/** Opens a model file's vocabulary, in tens of milliseconds. Throws Error when the file is missing, damaged or has none. */
export function openVocabulary({ model, path, device = 'cpu' }: VocabularyOptions): Vocabulary {
  const native = new (loadNative(device).native.Vocabulary)(path);
  const { size, chatTemplate, contextTokens, bosToken, eosToken, endTokens } = native.facts;
  // Pieces are asked for once per streamed token: after the first time one costs an array read.
  const pieces = new Array<Uint8Array | undefined>(size);
  return {
    model,
    size,
    chatTemplate,
    contextTokens: Number(contextTokens) || 0,
    bosToken,
    eosToken,
    endTokens: new Set(endTokens),
    tokenize: (text, { special, addBos }) => native.tokenize(Buffer.from(text, 'utf8'), special, addBos),
    grammarFault: (gbnf) => native.grammarFault(gbnf),
    piece(token) {
      const known = pieces[token];
      if (known !== undefined) return known;
      const bytes = native.piece(token);
      pieces[token] = bytes;
      return bytes;
    },
  };
}
