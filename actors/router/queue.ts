/**
 * What waits for a worker: policy classes that share dispatches by deficit round robin, each in its own order, each with its limits.
 * Pure data: who may be dispatched, and when it is, is the caller's to say.
 */

export type QueuePolicy = 'fcfs' | 'lcfs' | 'wspt';

export interface QueueClass {
  readonly name: string;
  /** Order within the class: first come, last come, or shortest uncached prompt first. */
  readonly policy: QueuePolicy;
  /** Uncached tokens a class may dispatch per turn: the ratio of two classes' quanta is that of their shares. */
  readonly quantum: number;
  /** Most that may wait, per worker; undefined: only the queue's own limit. */
  readonly requestsPerWorker?: number;
  readonly promptTokensPerWorker?: number;
  readonly cachedTokensPerWorker?: number;
}

export interface QueueConfig {
  /** At least one; those without a rule go to the first. */
  readonly classes: readonly QueueClass[];
  /** Most requests over all classes. */
  readonly limit: number;
}

const defaultQueue: QueueConfig = {
  classes: [{ name: 'default', policy: 'fcfs', quantum: 1 }],
  limit: 10_000,
};

export interface Waiting<T> {
  /** Unique among what waits. */
  readonly id: string;
  readonly class: string;
  /** Head-of-line blocking ends at a lane: requests that ask for the same, e.g. one pinned worker. */
  readonly lane: string;
  readonly arrivedMs: number;
  /** From then on it is `expired`, never dispatched. */
  readonly deadlineMs: number;
  /** Higher goes first whatever the policy says. */
  readonly strictPriority: number;
  /** As many seconds earlier (fcfs, lcfs), or so many times more urgent less one (wspt); below 0 counts as 0. */
  readonly priority: number;
  readonly promptTokens: number;
  /** Of those, tokens that the best worker had cached on arrival. */
  readonly cachedTokens: number;
  readonly item: T;
}

export type EnqueueRefusal = 'limit' | 'requests' | 'prompt-tokens' | 'cached-tokens' | 'duplicate' | 'unknown-class';

/** Throws RangeError, which names the class and the setting. */
export function queueConfig(config: QueueConfig): QueueConfig {
  if (config.classes.length === 0) throw new RangeError('a queue needs a class');
  const names = new Set<string>();
  for (const each of config.classes) {
    if (names.has(each.name)) throw new RangeError(`there are two classes ${each.name}`);
    names.add(each.name);
    if (!Object.hasOwn(urgency, each.policy))
      throw new RangeError(`class ${each.name}: there is no policy ${each.policy}`);
    const least = { quantum: 1, requestsPerWorker: 0, promptTokensPerWorker: 0, cachedTokensPerWorker: 0 } as const;
    for (const [key, from] of Object.entries(least)) {
      const value = each[key as keyof typeof least];
      if (value !== undefined && !(Number.isSafeInteger(value) && value >= from)) {
        throw new RangeError(`class ${each.name}: ${key} is ${value}: an integer of at least ${from} is wanted`);
      }
    }
  }
  if (!Number.isSafeInteger(config.limit) || config.limit < 0)
    throw new RangeError(`limit is ${config.limit}: an integer of at least 0 is wanted`);
  return config;
}

/** Greater goes first. */
const urgency: Readonly<Record<QueuePolicy, (waiting: Waiting<unknown>) => number>> = {
  fcfs: ({ priority, arrivedMs }) => Math.max(0, priority) - arrivedMs / 1000,
  lcfs: ({ priority, arrivedMs }) => Math.max(0, priority) + arrivedMs / 1000,
  wspt: ({ priority, promptTokens, cachedTokens }) =>
    (1 + Math.max(0, priority)) / Math.max(1, promptTokens - cachedTokens),
};

interface Ranked<T> {
  readonly waiting: Waiting<T>;
  readonly urgency: number;
  readonly arrival: number;
  /** In uncached tokens, as they were on arrival. */
  readonly cost: number;
}

interface Line<T> {
  readonly config: QueueClass;
  /** The most urgent last. */
  readonly lanes: Map<string, Ranked<T>[]>;
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  deficit: number;
}

/** Below 0: `a` is less urgent. Ties: the one that came first. */
function compare(a: Ranked<unknown>, b: Ranked<unknown>): number {
  return a.waiting.strictPriority - b.waiting.strictPriority || a.urgency - b.urgency || b.arrival - a.arrival;
}

/** Where `ranked` is, or would go. */
function placeIn(lane: readonly Ranked<unknown>[], ranked: Ranked<unknown>): number {
  let low = 0;
  let high = lane.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(lane[middle] as Ranked<unknown>, ranked) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class RouterQueue<T> {
  readonly #limit: number;
  readonly #ring: Line<T>[];
  readonly #byId = new Map<string, Ranked<T>>();
  #cursor = 0;
  #arrivals = 0;
  /** No deadline is earlier. */
  #earliest = Number.POSITIVE_INFINITY;

  /** Throws RangeError as `queueConfig` does. */
  constructor(config: QueueConfig = defaultQueue) {
    queueConfig(config);
    this.#limit = config.limit;
    this.#ring = config.classes.map((each) => ({
      config: each,
      lanes: new Map(),
      requests: 0,
      promptTokens: 0,
      cachedTokens: 0,
      deficit: 0,
    }));
  }

  get size(): number {
    return this.#byId.size;
  }

  /** Over all that waits; for load reports. */
  get promptTokens(): number {
    return this.#ring.reduce((sum, line) => sum + line.promptTokens, 0);
  }

  /** How many wait in a class. */
  waitingIn(name: string): number {
    return this.#ring.find(({ config }) => config.name === name)?.requests ?? 0;
  }

  has(id: string): boolean {
    return this.#byId.has(id);
  }

  /** Undefined: it waits. `workers` scales the limits; with none at the moment they are those of one, so that it may return. */
  enqueue(waiting: Waiting<T>, workers: number): EnqueueRefusal | undefined {
    const line = this.#ring.find(({ config }) => config.name === waiting.class);
    if (line === undefined) return 'unknown-class';
    if (this.#byId.has(waiting.id)) return 'duplicate';
    if (this.#byId.size >= this.#limit) return 'limit';
    const scale = Math.max(1, workers);
    const over = (limit: number | undefined, sum: number) => limit !== undefined && sum > limit * scale;
    const { config } = line;
    if (over(config.requestsPerWorker, line.requests + 1)) return 'requests';
    if (over(config.promptTokensPerWorker, line.promptTokens + waiting.promptTokens)) return 'prompt-tokens';
    if (over(config.cachedTokensPerWorker, line.cachedTokens + waiting.cachedTokens)) return 'cached-tokens';
    const ranked: Ranked<T> = {
      waiting,
      urgency: urgency[config.policy](waiting),
      arrival: this.#arrivals++,
      cost: Math.max(1, waiting.promptTokens - waiting.cachedTokens),
    };
    let lane = line.lanes.get(waiting.lane);
    if (lane === undefined) {
      lane = [];
      line.lanes.set(waiting.lane, lane);
    }
    lane.splice(placeIn(lane, ranked), 0, ranked);
    this.#byId.set(waiting.id, ranked);
    line.requests += 1;
    line.promptTokens += waiting.promptTokens;
    line.cachedTokens += waiting.cachedTokens;
    this.#earliest = Math.min(this.#earliest, waiting.deadlineMs);
    return undefined;
  }

  /** Takes one out, whoever's turn it is; undefined if it does not wait. */
  remove(id: string): Waiting<T> | undefined {
    const ranked = this.#byId.get(id);
    if (ranked === undefined) return undefined;
    const { waiting } = ranked;
    const line = this.#ring.find(({ config }) => config.name === waiting.class) as Line<T>;
    const lane = line.lanes.get(waiting.lane) as Ranked<T>[];
    lane.splice(placeIn(lane, ranked), 1);
    if (lane.length === 0) line.lanes.delete(waiting.lane);
    this.#byId.delete(id);
    line.requests -= 1;
    line.promptTokens -= waiting.promptTokens;
    line.cachedTokens -= waiting.cachedTokens;
    // What an empty class did not use is not kept for later.
    if (line.requests === 0) line.deficit = 0;
    return waiting;
  }

  /** Takes out and returns what is past its deadline. Cheap while nothing is. */
  expire(nowMs: number): Waiting<T>[] {
    if (nowMs < this.#earliest) return [];
    const gone: Waiting<T>[] = [];
    this.#earliest = Number.POSITIVE_INFINITY;
    for (const { waiting } of this.#byId.values()) {
      if (waiting.deadlineMs <= nowMs) gone.push(waiting);
      else this.#earliest = Math.min(this.#earliest, waiting.deadlineMs);
    }
    for (const { id } of gone) this.remove(id);
    return gone;
  }

  /**
   * The next to be dispatched, taken out, with what `place` made of it. `place` is asked for the most urgent of a lane until it answers
   * with a placement, which may go unused; undefined means there is no room for this one now, and whatever waits behind it in its lane
   * waits on.
   */
  take<P>(
    nowMs: number,
    place: (waiting: Waiting<T>) => P | undefined,
  ): { readonly waiting: Waiting<T>; readonly placement: P } | undefined {
    const blocked = new Set<Line<T>>();
    const heads = new Map<Line<T>, { readonly ranked: Ranked<T>; readonly placement: P }>();
    const headOf = (line: Line<T>) => {
      let head = heads.get(line);
      if (head === undefined && !blocked.has(line)) {
        head = this.#head(line, nowMs, place);
        if (head === undefined) blocked.add(line);
        else heads.set(line, head);
      }
      return head;
    };
    // Two rounds: a credit for every class that could go, and, if none can afford its next one yet, as many credits at once as it takes.
    for (let round = 0; round < 2; round++) {
      for (let visited = 0; visited < this.#ring.length; visited++) {
        const line = this.#ring[this.#cursor] as Line<T>;
        const head = headOf(line);
        if (head !== undefined) {
          if (line.deficit < head.ranked.cost) line.deficit += line.config.quantum;
          if (line.deficit >= head.ranked.cost) return this.#dispatch(line, head.ranked, head.placement, nowMs);
        }
        this.#cursor = (this.#cursor + 1) % this.#ring.length;
      }
      if (heads.size === 0) return undefined;
      const rounds = Math.min(
        ...[...heads].map(([line, { ranked }]) => Math.ceil((ranked.cost - line.deficit) / line.config.quantum)),
      );
      // One of them is given by the visit itself.
      for (const line of heads.keys()) line.deficit += (rounds - 1) * line.config.quantum;
    }
    return undefined;
  }

  #dispatch<P>(
    line: Line<T>,
    ranked: Ranked<T>,
    placement: P,
    nowMs: number,
  ): { readonly waiting: Waiting<T>; readonly placement: P } {
    line.deficit -= ranked.cost;
    this.remove(ranked.waiting.id);
    // It stays its turn while what it has left pays for the next one.
    const next = this.#heads(line, nowMs)[0];
    if (next === undefined || line.deficit < next.cost) this.#cursor = (this.#cursor + 1) % this.#ring.length;
    return { waiting: ranked.waiting, placement };
  }

  /** The most urgent of each lane that is not past its deadline, most urgent first. */
  #heads(line: Line<T>, nowMs: number): Ranked<T>[] {
    const heads: Ranked<T>[] = [];
    for (const lane of line.lanes.values()) {
      const head = lane.findLast(({ waiting }) => waiting.deadlineMs > nowMs);
      if (head !== undefined) heads.push(head);
    }
    return heads.sort((a, b) => compare(b, a));
  }

  #head<P>(line: Line<T>, nowMs: number, place: (waiting: Waiting<T>) => P | undefined) {
    for (const ranked of this.#heads(line, nowMs)) {
      const placement = place(ranked.waiting);
      if (placement !== undefined) return { ranked, placement };
    }
    return undefined;
  }
}

/** Which class a request belongs to: the first rule that fits, else the first class. */
export interface ClassRule {
  readonly class: string;
  /** As the client's header names it; undefined: any. */
  readonly family?: string;
  /** Uncached prompt tokens, from (inclusive) and to (exclusive). */
  readonly from?: number;
  readonly to?: number;
}

export function classOf(
  rules: readonly ClassRule[],
  family: string | undefined,
  uncachedTokens: number,
  standard: string,
): string {
  const fits = (rule: ClassRule) =>
    (rule.family === undefined || rule.family === family) &&
    uncachedTokens >= (rule.from ?? 0) &&
    uncachedTokens < (rule.to ?? Number.POSITIVE_INFINITY);
  return rules.find(fits)?.class ?? standard;
}
