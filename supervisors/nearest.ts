/** The candidate with the fewest edits (insert, delete, replace, swap of neighbours), for "did you mean". */
export function nearest(word: string, candidates: readonly string[]): string | undefined {
  let best: string | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    const cost = edits(word.toLowerCase(), candidate.toLowerCase());
    if (cost < least) [best, least] = [candidate, cost];
  }
  return best;
}

/** Optimal string alignment distance. */
export function edits(a: string, b: string): number {
  let before: number[] = [];
  let above = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const same = a[row - 1] === b[column - 1];
      let cost = Math.min(
        (above[column] as number) + 1,
        (current[column - 1] as number) + 1,
        (above[column - 1] as number) + (same ? 0 : 1),
      );
      if (row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]) {
        cost = Math.min(cost, (before[column - 2] as number) + 1);
      }
      current.push(cost);
    }
    [before, above] = [above, current];
  }
  return above[b.length] as number;
}
