/** A piece of a choice's answer, in order. `call` counts the calls of the choice from 0; its name comes first, then its arguments. */
export type Delta =
  | { readonly kind: 'content'; readonly text: string }
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'call'; readonly call: number; readonly name: string }
  | { readonly kind: 'arguments'; readonly call: number; readonly text: string };

/** What models that were trained on Hermes' format write around a call of a tool. */
export const callMarks = { open: '<tool_call>', close: '</tool_call>' } as const;
