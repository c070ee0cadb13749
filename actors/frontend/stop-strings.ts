/**
 * Finds the first stop string in a text that arrives in pieces, and never lets a piece of one out: what could still become
 * a stop string is held back until it is clear.
 */
export interface StopScanner {
  /** Text that is safe to send, and whether a stop string was found right after it. */
  push(text: string): { readonly text: string; readonly stopped: boolean };
  /** The text ended by itself: what was held back. */
  end(): string;
}

export function stopScanner(stops: readonly string[]): StopScanner {
  let held = '';
  return {
    push(text) {
      held += text;
      let first = -1;
      for (const stop of stops) {
        const at = held.indexOf(stop);
        if (at >= 0 && (first < 0 || at < first)) first = at;
      }
      if (first >= 0) {
        const out = held.slice(0, first);
        held = '';
        return { text: out, stopped: true };
      }
      const keep = longestTail(held, stops);
      const out = held.slice(0, held.length - keep);
      held = held.slice(held.length - keep);
      return { text: out, stopped: false };
    },
    end() {
      const out = held;
      held = '';
      return out;
    },
  };
}

/** Length of the longest tail of `text` that is the beginning of a stop string. */
function longestTail(text: string, stops: readonly string[]): number {
  let longest = 0;
  for (const stop of stops) {
    for (let size = Math.min(stop.length - 1, text.length); size > longest; size--) {
      if (text.endsWith(stop.slice(0, size))) longest = size;
    }
  }
  return longest;
}
