/**
 * How long an engine has stood still, counted in reports of its worker and not by a clock: whoever stands still himself, be it the worker,
 * the one who counts or the whole machine, counts nothing meanwhile.
 */
export interface Standstill {
  /** Reports in a row with work for the engine and no step. */
  readonly reports: number;
  /** The longest such row that ended with a step: an engine this slow is not wedged. */
  readonly longest: number;
}

/** Takes each report in turn: steps so far, and whether there is work. */
export function countStandstill(): (steps: number, hasWork: boolean) => Standstill {
  let known: number | undefined;
  let reports = 0;
  let longest = 0;
  return (steps, hasWork) => {
    if (steps !== known) {
      longest = Math.max(longest, reports);
      reports = 0;
      known = steps;
    } else reports = hasWork ? reports + 1 : 0;
    return { reports, longest };
  };
}
