/** Text ↔ tokens. The gateway's half of a model: loads the vocabulary only, no weights. */
export interface Vocabulary {
  /** Model id this belongs to. */
  readonly model: string;
  readonly size: number;
  /** Jinja source; '' if the model has none (then the gateway uses ChatML). */
  readonly chatTemplate: string;
  readonly contextTokens: number;
  readonly bosToken: string;
  readonly eosToken: string;
  /** Ids that end a generation. */
  readonly endTokens: ReadonlySet<number>;
  /** `special`: text such as `<|im_start|>` becomes the control token. */
  tokenize(text: string, options: { special: boolean; addBos: boolean }): Uint32Array;
  /** The bytes a token stands for; control tokens stand for none. Not always valid UTF-8 by themselves. */
  piece(token: number): Uint8Array;
  /** Why the engine cannot follow this grammar (GBNF), '' if it can. Absent: the model's engine follows none. */
  grammarFault?(gbnf: string): string;
}
