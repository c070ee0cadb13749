/**
 * Every decision of supervision as a pure function or a table. The runner (supervisor.ts) only carries them out, for
 * actors and processes alike.
 */
import type { ExitReason } from '../../actors/index.js';
import type { RestartType } from './child.js';

/** What one child's end does to its siblings. `dynamic` is one_for_one for children that come and go. */
export type Strategy = 'one_for_one' | 'one_for_all' | 'rest_for_one' | 'dynamic';

/** When the end of significant children ends the supervisor. */
export type AutoShutdown = 'never' | 'any_significant' | 'all_significant';

/** Restart type × how the life ended: is there another life? */
export const restarted: Readonly<Record<RestartType, Readonly<Record<ExitReason['kind'], boolean>>>> = {
  permanent: { normal: true, shutdown: true, killed: true, error: true },
  transient: { normal: false, shutdown: false, killed: true, error: true },
  temporary: { normal: false, shutdown: false, killed: false, error: false },
};

export interface Plan {
  /** In this order: the last one started stops first. The failed child has ended already. */
  readonly stop: readonly string[];
  /** In this order: as at the first start. */
  readonly start: readonly string[];
}

/** `names` in start order. Whoever is temporary is stopped with the others but not started again. */
export function plan(
  strategy: Strategy,
  names: readonly string[],
  failed: string,
  temporary: (name: string) => boolean,
): Plan {
  const reach = {
    one_for_one: [failed],
    dynamic: [failed],
    one_for_all: names,
    rest_for_one: names.slice(names.indexOf(failed)),
  }[strategy];
  return {
    stop: reach.filter((name) => name !== failed).reverse(),
    start: reach.filter((name) => name === failed || !temporary(name)),
  };
}

/** At most `intensity` restarts within `periodMs`. */
export interface Limit {
  readonly intensity: number;
  readonly periodMs: number;
}

/**
 * One more restart at `now`, beside those at `earlier`. One failure is one restart, however many siblings it takes along;
 * a start that fails is one more. `times` are those to remember; not `within` = give up.
 */
export function admit(
  earlier: readonly number[],
  now: number,
  { intensity, periodMs }: Limit,
): { readonly within: boolean; readonly times: readonly number[] } {
  const times = [...earlier.filter((time) => time >= now - periodMs), now];
  return { within: times.length <= intensity, times };
}

export interface Backoff {
  /** Before the first restart. */
  readonly minMs: number;
  readonly maxMs: number;
  /** 0.2 = up to 20 % longer, so that what failed together does not come back together. */
  readonly jitter: number;
  /** A life at least this long starts the count anew. */
  readonly quietMs: number;
}

/** `failures` in a row before this one. `random` in [0, 1). */
export function delayMs(failures: number, { minMs, maxMs, jitter }: Backoff, random: number): number {
  return Math.min(minMs * 2 ** failures, maxMs) * (1 + jitter * random);
}

/** Failures in a row that still count, after a life of `livedMs` (undefined: the start itself failed). */
export function failuresInARow(failures: number, livedMs: number | undefined, quietMs: number): number {
  return livedMs !== undefined && livedMs >= quietMs ? 0 : failures;
}

/**
 * A significant child has ended by itself and is not restarted; `othersLeft` = another significant child lives or will
 * live again.
 */
export function endsSupervisor(auto: AutoShutdown, othersLeft: boolean): boolean {
  return { never: false, any_significant: true, all_significant: !othersLeft }[auto];
}

/** What the next step of a repair sees of a child. */
export interface Member {
  readonly live: boolean;
  /** It takes part in a sibling's restart and has to stop first. */
  readonly doomed: boolean;
  readonly wanted: boolean;
}

export type Step<M extends Member> =
  | { readonly kind: 'stop'; readonly member: M }
  | { readonly kind: 'wait'; readonly ms: number }
  | { readonly kind: 'start'; readonly member: M }
  | { readonly kind: 'done' };

/**
 * Asked again after each step, so that a failure in the middle of a repair widens the repair instead of racing it: first
 * all that must stop, right to left; then the back-off; then all that is missing, left to right.
 */
export function nextStep<M extends Member>(members: readonly M[], now: number, notBefore: number): Step<M> {
  const doomed = members.findLast((member) => member.doomed && member.live);
  if (doomed !== undefined) return { kind: 'stop', member: doomed };
  const missing = members.find((member) => member.wanted && !member.live);
  if (missing === undefined) return { kind: 'done' };
  if (now < notBefore) return { kind: 'wait', ms: notBefore - now };
  return { kind: 'start', member: missing };
}
