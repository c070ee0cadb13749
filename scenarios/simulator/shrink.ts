/**
 * From a schedule that fails to a short one that fails too: the less it does, the sooner somebody sees why. Greedy, by halves and then one by
 * one (Zeller's delta debugging); every candidate is a whole run, so the number of runs is bounded.
 */
import type { Schedule } from './schedule.js';

export interface ShrinkOptions {
  /** Runs at most. @default 200 */
  readonly runs?: number;
  readonly progress?: (text: string) => void;
}

/** Whether the schedule fails, in whatever way. */
export type Fails = (schedule: Schedule) => Promise<boolean>;

export async function shrink(failing: Schedule, fails: Fails, options: ShrinkOptions = {}): Promise<Schedule> {
  let best = failing;
  let left = options.runs ?? 200;
  const tries = async (candidate: Schedule): Promise<boolean> => {
    if (left <= 0) return false;
    left--;
    if (!(await fails(candidate))) return false;
    best = candidate;
    options.progress?.(`${best.requests.length} requests, ${best.faults.length} faults`);
    return true;
  };

  const quiet = { drop: 0, duplicate: 0, reorder: 0, delay: 0 };
  await tries({ ...best, rates: quiet });
  await without('faults');
  await without('requests');
  await without('faults');
  for (const role of ['gateways', 'prefill', 'decode'] as const) {
    const least = role === 'prefill' ? 0 : 1;
    while (best[role] > least && fits(role, best[role] - 1) && (await tries({ ...best, [role]: best[role] - 1 })));
  }
  return best;

  /** Leaves out as much of a list as it can. */
  async function without(list: 'faults' | 'requests'): Promise<void> {
    let part = Math.ceil(best[list].length / 2);
    while (part >= 1 && best[list].length > 0 && left > 0) {
      let smaller = false;
      for (let from = 0; from < best[list].length; ) {
        const rest = best[list].filter((_, index) => index < from || index >= from + part);
        if (await tries({ ...best, [list]: rest })) smaller = true;
        else from += part;
      }
      if (part === 1 && !smaller) return;
      part = Math.max(1, Math.floor(part / 2));
    }
  }

  /** Nobody speaks of an instance that would not be there. */
  function fits(role: 'gateways' | 'prefill' | 'decode', count: number): boolean {
    const name = role === 'gateways' ? 'gateway' : role;
    const beyond = (target: string) => target.startsWith(`${name}-`) && Number(target.slice(name.length + 1)) >= count;
    if (best.faults.some(({ target }) => beyond(target))) return false;
    return role !== 'gateways' || best.requests.every(({ gateway }) => gateway < count);
  }
}
