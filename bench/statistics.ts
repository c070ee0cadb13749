/** NaN for an empty list. */
export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

/** Nearest rank: always one of the values. NaN for an empty list. */
export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? Number.NaN;
}

/**
 * Runs every side `rounds` times, in turn and each round in the other direction, so that a machine that changes its pace
 * changes it for all. The results of one side, in order.
 */
export async function interleaved<T>(
  rounds: number,
  sides: Readonly<Record<string, (round: number) => Promise<T>>>,
): Promise<Record<string, T[]>> {
  const results: Record<string, T[]> = Object.fromEntries(Object.keys(sides).map((name) => [name, []]));
  for (let round = 0; round < rounds; round++) {
    const order = Object.entries(sides);
    if (round % 2 === 1) order.reverse();
    for (const [name, run] of order) (results[name] as T[]).push(await run(round));
  }
  return results;
}
