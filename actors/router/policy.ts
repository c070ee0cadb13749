/** Which of several candidates takes a request. Pure: the draw comes in as a number, so that a decision can be re-run. */

export interface Candidate {
  readonly incarnation: string;
  /** Units in use by this router's own dispatches, plus what the last load report says beyond them. */
  readonly load: number;
  readonly capacity: number;
}

export type RoutingMode = 'round-robin' | 'least-loaded';

/**
 * `turn` counts decisions (round-robin), `draw` ∈ [0, 1) breaks ties (least-loaded). Candidates come in a stable order and
 * are all eligible; undefined if there are none.
 */
export function select(
  mode: RoutingMode,
  candidates: readonly Candidate[],
  turn: number,
  draw: number,
): Candidate | undefined {
  if (candidates.length === 0) return undefined;
  if (mode === 'round-robin') return candidates[turn % candidates.length];
  let least = Number.POSITIVE_INFINITY;
  let tied: Candidate[] = [];
  for (const candidate of candidates) {
    const share = candidate.load / candidate.capacity;
    if (share < least) {
      least = share;
      tied = [candidate];
    } else if (share === least) tied.push(candidate);
  }
  return tied[Math.floor(draw * tied.length)];
}
