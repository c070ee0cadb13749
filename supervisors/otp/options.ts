/** What a supervisor is told, resolved once: defaults filled in, impossible combinations refused by name. */
import type { ChildSpec, RestartType, Shutdown } from './child.js';
import { type Clock, systemClock } from './clock.js';
import type { AutoShutdown, Backoff, Limit, Strategy } from './decisions.js';
import { SupervisionError } from './errors.js';

export interface SupervisorOptions {
  /** For errors and status. */
  readonly name: string;
  /** In start order; they stop in the reverse order. `dynamic` stops all at once. */
  readonly children?: readonly ChildSpec[];
  /** Default one_for_one. */
  readonly strategy?: Strategy;
  /** Restarts allowed within `periodMs`; one more and the supervisor gives up. Default 1 (OTP's). */
  readonly intensity?: number;
  /** Default 5,000. */
  readonly periodMs?: number;
  /** Default 50 ms, doubling up to 30 s, up to 20 % jitter, counted anew after a life of 30 s. */
  readonly backoff?: Partial<Backoff>;
  /** Default never. */
  readonly autoShutdown?: AutoShutdown;
  /** Most children at a time; startChild beyond it is refused. Default 10,000. */
  readonly maxChildren?: number;
  /** How long a child that was killed, or whose start was aborted, may take to be gone. Default 10,000 ms. */
  readonly graceMs?: number;
  /** Default the system's. */
  readonly clock?: Clock;
}

export type ResolvedSpec = Required<ChildSpec>;

export interface ResolvedOptions {
  readonly name: string;
  readonly children: readonly ResolvedSpec[];
  readonly strategy: Strategy;
  readonly limit: Limit;
  readonly backoff: Backoff;
  readonly autoShutdown: AutoShutdown;
  readonly maxChildren: number;
  readonly graceMs: number;
  readonly clock: Clock;
}

const restarts: readonly RestartType[] = ['permanent', 'transient', 'temporary'];
const strategies: readonly Strategy[] = ['one_for_one', 'one_for_all', 'rest_for_one', 'dynamic'];
const autoShutdowns: readonly AutoShutdown[] = ['never', 'any_significant', 'all_significant'];
const defaultBackoff = { minMs: 50, maxMs: 30_000, jitter: 0.2 };

export function resolveOptions(options: SupervisorOptions): ResolvedOptions {
  const { name, strategy = 'one_for_one', intensity = 1, periodMs = 5_000, autoShutdown = 'never' } = options;
  const { maxChildren = 10_000, graceMs = 10_000, clock = systemClock } = options;
  const maxMs = options.backoff?.maxMs ?? defaultBackoff.maxMs;
  const backoff: Backoff = { ...defaultBackoff, quietMs: maxMs, ...options.backoff };

  const check = (holds: boolean, text: string): void => {
    if (!holds) throw new SupervisionError('SUP_SPEC', [name, text]);
  };
  check(strategies.includes(strategy), `strategy ${strategy} is none of ${strategies.join(', ')}`);
  check(autoShutdowns.includes(autoShutdown), `autoShutdown ${autoShutdown} is none of ${autoShutdowns.join(', ')}`);
  check(Number.isInteger(intensity) && intensity >= 0, 'intensity is not a whole number ≥ 0');
  check(periodMs > 0, 'periodMs is not > 0');
  check(backoff.minMs >= 0 && backoff.maxMs >= backoff.minMs, 'backoff.minMs is not within 0 … backoff.maxMs');
  check(backoff.jitter >= 0, 'backoff.jitter is < 0');
  check(Number.isInteger(maxChildren) && maxChildren > 0, 'maxChildren is not a whole number > 0');

  const children = (options.children ?? []).map((child) => resolveSpec(child, name, autoShutdown, backoff.quietMs));
  check(children.length <= maxChildren, 'there are more children than maxChildren');
  for (const [index, { name: child }] of children.entries()) {
    const first = children.findIndex(({ name: other }) => other === child);
    check(first === index, `two children are called ${child}`);
  }
  return Object.freeze({
    name,
    children,
    strategy,
    limit: { intensity, periodMs },
    backoff,
    autoShutdown,
    maxChildren,
    graceMs,
    clock,
  });
}

export function resolveSpec(
  spec: ChildSpec,
  supervisor: string,
  autoShutdown: AutoShutdown,
  quiet: number,
): ResolvedSpec {
  const { kind = 'worker', restart = 'permanent', significant = false, quietMs = quiet } = spec;
  const shutdown: Shutdown = spec.shutdown ?? (kind === 'supervisor' ? 'infinity' : 5_000);
  const startDeadlineMs = spec.startDeadlineMs ?? 60_000;
  const check = (holds: boolean, text: string): void => {
    if (!holds) throw new SupervisionError('SUP_SPEC', [supervisor, `child ${spec.name}: ${text}`]);
  };
  check(spec.name !== '', 'name is empty');
  check(restarts.includes(restart), `restart ${restart} is none of ${restarts.join(', ')}`);
  check(
    shutdown === 'brutal' || shutdown === 'infinity' || shutdown >= 0,
    'shutdown is neither brutal, infinity nor ≥ 0',
  );
  check(startDeadlineMs > 0, 'startDeadlineMs is not > 0');
  check(!(significant && restart === 'permanent'), 'significant with restart permanent: it never ends for good');
  check(!(significant && autoShutdown === 'never'), 'significant with autoShutdown never: nothing would follow');
  check(quietMs >= 0, 'quietMs is < 0');
  const { name, child } = spec;
  return Object.freeze({ name, child, restart, shutdown, kind, significant, startDeadlineMs, quietMs });
}
