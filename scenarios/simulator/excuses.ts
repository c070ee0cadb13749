/** Which failures a client may be told of, by what went wrong. Whatever is not here must not happen: the request should have been served. */
import type { FaultKind, Schedule } from './schedule.js';

const anyOf = (...kinds: FaultKind[]): ReadonlySet<FaultKind> => new Set(kinds);
const broker = anyOf('broker-restart', 'broker-crash', 'partition');

const excuses: Readonly<Record<string, ReadonlySet<FaultKind>>> = {
  // New requests while the broker is away, or out of reach of their gateway.
  broker_down: broker,
  net_refused: anyOf('disk-full'),
  net_timeout: broker,
  // Nobody to serve it for as long as it may wait.
  no_worker: anyOf('crash', 'freeze', 'wedge', 'partition', 'broker-restart', 'broker-crash', 'drain'),
  queue_timeout: anyOf('crash', 'freeze', 'wedge', 'partition', 'broker-restart', 'broker-crash', 'drain'),
  // Two processes died while they had it.
  poison_prompt: anyOf('crash', 'freeze', 'wedge'),
};

/** What an attempt is lost with. */
const ofWorkers: ReadonlySet<string> = new Set([
  'worker_down',
  'worker_silent',
  'engine_wedged',
  'accept_timeout',
  'stream_broken',
  'gpu_handoff_gone',
]);

/** A request is tried this often: so many ill workers may use up all its attempts, and it fails with the last one's code. */
const attempts = 4;
const illness = anyOf('crash', 'freeze', 'wedge', 'partition', 'slow', 'drain', 'broker-crash', 'broker-restart');

/** What a schedule itself allows a request to end with. */
const allowed: Readonly<Record<string, (schedule: Schedule) => boolean>> = {
  queue_timeout: ({ queueMs }) => queueMs !== undefined,
  no_worker: ({ queueMs }) => queueMs !== undefined,
  total_timeout: ({ totalMs }) => totalMs !== undefined,
  class_full: ({ classes }) => classes === true,
  // One lost acknowledgement is a broker that says nothing, for a while.
  broker_down: ({ rates }) => rates.drop > 0,
};

/** Undefined: it is excused. */
export function inexcusable(code: string, schedule: Schedule): string | undefined {
  const { faults } = schedule;
  if (allowed[code]?.(schedule) === true) return undefined;
  const kinds = excuses[code];
  if (kinds !== undefined && faults.some(({ kind }) => kinds.has(kind))) return undefined;
  if (ofWorkers.has(code) && faults.filter(({ kind }) => illness.has(kind)).length >= attempts) return undefined;
  const had = [...new Set(faults.map(({ kind }) => kind))].join(', ');
  return `failed with ${code}, for which ${had === '' ? 'an undisturbed run' : had} is no reason`;
}
