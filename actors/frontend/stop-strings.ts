/**
 * Finds the first stop string in a text that arrives in pieces, and never lets a piece of one out: what could still become
 * a stop string is held back until it is clear.
 */
export interface StopScanner {
  /** Text that is safe to send, and the stop string that was found right after it. */
  push(text: string): { readonly text: string; readonly stopped: string | undefined };
  /** The text ended by itself: what was held back. */
  end(): string;
}

export function stopScanner(stops: readonly string[]): StopScanner {
  let held = '';
  return {
    push(text) {
      held += text;
      let first = -1;
      let stopped: string | undefined;
      for (const stop of stops) {
        const at = held.indexOf(stop);
        // Of two that begin at one place the shorter one is complete first, however the text is cut.
        const sooner = first < 0 || at < first || (at === first && stop.length < (stopped?.length ?? 0));
        if (at < 0 || !sooner) continue;
        first = at;
        stopped = stop;
      }
      if (stopped !== undefined) {
        const out = held.slice(0, first);
        held = '';
        return { text: out, stopped };
      }
      const keep = longestTail(held, stops);
      const out = held.slice(0, held.length - keep);
      held = held.slice(held.length - keep);
      return { text: out, stopped: undefined };
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
