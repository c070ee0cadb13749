/**
 * Wishes that name workers, as a client may: by instance (`decode-0`, whoever serves under that name now) or by incarnation. And why a request
 * can never be served as it is, so that it is refused rather than kept waiting.
 */
import type { RefusalCode } from '../refusals.js';
import type { RouteRequest, Worker } from './choose.js';

type Workers = ReadonlyMap<string, Worker>;

export type Unroutable = Extract<
  RefusalCode,
  | 'TOO_MANY_CHOICES'
  | 'NO_SUCH_WORKER'
  | 'UNPINNED'
  | 'WISHES_UNMET'
  | 'ALL_BUSY'
  | 'PINNED_BUSY'
  | 'QUEUE_FULL'
  | 'CLASS_FULL'
  | 'QUEUE_TIMEOUT'
  | 'INTERNAL'
>;

/** The same request with incarnations for names. A name that nobody has is NO_SUCH_WORKER where it is a pin. */
export function named(workers: Workers, request: RouteRequest): RouteRequest | 'NO_SUCH_WORKER' {
  const { wishes } = request;
  if (wishes?.pin === undefined && wishes?.allowed === undefined) return request;
  const { pin, allowed, ...rest } = wishes;
  let found: NonNullable<typeof pin> | undefined;
  if (pin !== undefined) {
    // There is one rank to a worker.
    if ((pin.rank ?? 0) !== 0) return 'NO_SUCH_WORKER';
    const asked = [pin.worker, pin.decode, pin.prefill].map((name) =>
      name === undefined ? undefined : find(workers, request.model, name),
    );
    const [worker, decode, prefill] = asked.map((each) => each?.info);
    const lost = [pin.worker, pin.decode, pin.prefill].some(
      (name, at) => name !== undefined && asked[at] === undefined,
    );
    if (lost || (decode ?? { component: 'decode' }).component !== 'decode') return 'NO_SUCH_WORKER';
    if ((prefill ?? { component: 'prefill' }).component !== 'prefill') return 'NO_SUCH_WORKER';
    // A worker named for whatever it does is meant for its own leg, and for no other.
    const own = worker === undefined ? {} : { [worker.component]: worker.incarnation };
    found = {
      ...own,
      ...(decode === undefined ? {} : { decode: decode.incarnation }),
      ...(prefill === undefined ? {} : { prefill: prefill.incarnation }),
    };
  }
  const some =
    allowed === undefined
      ? {}
      : { allowed: new Set([...workers.values()].filter((each) => isCalled(each, allowed)).map(incarnationOf)) };
  return { ...request, wishes: { ...rest, ...(found === undefined ? {} : { pin: found }), ...some } };
}

const incarnationOf = ({ info }: Worker) => info.incarnation;
const isCalled = ({ info }: Worker, names: ReadonlySet<string>) =>
  names.has(info.incarnation) || names.has(info.instance);

function find(workers: Workers, model: string, name: string): Worker | undefined {
  const exact = workers.get(name);
  if (exact !== undefined) return exact.info.model === model ? exact : undefined;
  let best: Worker | undefined;
  for (const worker of workers.values()) {
    const { instance, draining } = worker.info;
    // While one is replaced, two have its name: the one that stays.
    if (instance === name && worker.info.model === model && (best === undefined || !draining)) best = worker;
  }
  return best;
}

/** What no worker that serves its model could ever do for it, with names resolved; undefined: it is worth waiting. */
export function impossible(workers: Workers, request: RouteRequest, direct: boolean): Unroutable | undefined {
  const { wishes, choices, exclude } = request;
  if (direct && wishes?.pin?.decode === undefined) return 'UNPINNED';
  let most = 0;
  let some = false;
  let met = false;
  for (const { info } of workers.values()) {
    if (info.component !== 'decode' || info.model !== request.model) continue;
    some = true;
    most = Math.max(most, info.slots ?? 1);
    met ||= wishes === undefined || meets(info, wishes);
  }
  if (!some) return undefined;
  if (choices > most) return 'TOO_MANY_CHOICES';
  // What is pinned goes nowhere else when that one has failed it.
  const failed = [wishes?.pin?.decode, wishes?.pin?.prefill].some((each) => each !== undefined && exclude.has(each));
  return met && !failed ? undefined : 'WISHES_UNMET';
}

function meets(
  { incarnation, taints = [] }: Worker['info'],
  { pin, allowed, requiredTaints }: NonNullable<RouteRequest['wishes']>,
): boolean {
  if (pin?.decode !== undefined && pin.decode !== incarnation) return false;
  if (allowed !== undefined && !allowed.has(incarnation)) return false;
  return requiredTaints?.every((taint) => taints.includes(taint)) !== false;
}

/** What any worker would take or refuse alike has one lane in the queue. */
export function laneOf({ attempt, model, choices, exclude, wishes }: RouteRequest): string {
  const tried = attempt > 1 && exclude.size > 0 ? [...exclude].sort().join() : '';
  if (wishes === undefined) return `${choices}/${tried}/${model}`;
  const { pin, allowed, requiredTaints, mode } = wishes;
  const asked = [pin?.worker, pin?.decode, pin?.prefill, allowed && [...allowed].sort(), requiredTaints, mode];
  return `${choices}/${tried}/${model}/${JSON.stringify(asked)}`;
}
