/**
 * What waits for a worker: first the requests that are tried again, for their clients see a stream stand; then policy classes that
 * share dispatches by deficit round robin, each in its own order, each with its limits. Those that ask for the same workers form a lane,
 * and a lane whose first does not fit is not looked at further, so that an event costs as much as there are lanes, however many requests
 * wait. Pure data: who may be dispatched, and when it is, is the caller's to say.
 */

export type QueuePolicy = 'fcfs' | 'lcfs' | 'wspt';

/**
 * A class, and which requests are its own: the first class whose conditions a request meets, else the first without conditions, else the first
 * of all.
 */
export interface QueueClass {
  readonly name: string;
  /** Order within the class: first come, last come, or shortest uncached prompt first. */
  readonly policy: QueuePolicy;
  /** Uncached tokens a class may dispatch per turn: the ratio of two classes' quanta is that of their shares. */
  readonly quantum: number;
  /** As the client names it; undefined: any. */
  readonly family?: string;
  /** Uncached prompt tokens, from (inclusive) and to (exclusive). */
  readonly from?: number;
  readonly to?: number;
  /** Most that may wait, per worker; undefined: only the queue's own limits. */
  readonly requestsPerWorker?: number;
  readonly promptTokensPerWorker?: number;
  readonly cachedTokensPerWorker?: number;
}

/** Which workers a request waits for: those that decode, or, where one of them has room, those that compute prompts. */
export type Pool = 'decode' | 'prefill';

export interface QueueConfig {
  /** At least one. */
  readonly classes: readonly QueueClass[];
  /** Most requests over all classes. */
  readonly limit: number;
  /** Most that wait for either pool. */
  readonly pools?: Readonly<Partial<Record<Pool, number>>>;
}

export interface Waiting<T> {
  /** Unique among what waits. */
  readonly num: number;
  /** Above 1: it is tried again, and neither class nor limit applies. */
  readonly attempt: number;
  readonly class: string;
  /** What it asks of its workers; equal for requests that any worker would take or refuse alike. */
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

export type EnqueueRefusal = 'limit' | 'pool' | 'lanes' | 'requests' | 'prompt-tokens' | 'cached-tokens';

/** Every lane may cost a look at the whole fleet per event, and what makes a lane is the clients' choice. */
const mostLanes = 128;

/** Everybody in one line. */
export const oneClass = (limit: number, policy: QueuePolicy = 'fcfs'): QueueConfig => ({
  classes: [{ name: 'default', policy, quantum: 1 }],
  limit,
});

/** Throws RangeError, which names the class and the setting. */
export function queueConfig(config: QueueConfig): QueueConfig {
  if (config.classes.length === 0) throw new RangeError('a queue needs a class');
  const names = new Set<string>();
  for (const each of config.classes) {
    if (names.has(each.name)) throw new RangeError(`there are two classes ${each.name}`);
    names.add(each.name);
    if (!Object.hasOwn(urgency, each.policy))
      throw new RangeError(`class ${each.name}: there is no policy ${each.policy}`);
    for (const [key, from] of Object.entries(least)) {
      const value = each[key as keyof typeof least];
      if (value !== undefined && !(Number.isSafeInteger(value) && value >= from)) {
        throw new RangeError(`class ${each.name}: ${key} is ${value}: an integer of at least ${from} is wanted`);
      }
    }
  }
  for (const [key, value] of Object.entries({ limit: config.limit, ...config.pools })) {
    if (!Number.isSafeInteger(value) || value < 0)
      throw new RangeError(`${key} is ${value}: an integer of at least 0 is wanted`);
  }
  return config;
}

const least = {
  quantum: 1,
  from: 0,
  to: 1,
  requestsPerWorker: 0,
  promptTokensPerWorker: 0,
  cachedTokensPerWorker: 0,
} as const;

export function classOf(classes: readonly QueueClass[], family: string | undefined, uncachedTokens: number): string {
  const fits = (each: QueueClass) =>
    (each.family === undefined || each.family === family) &&
    uncachedTokens >= (each.from ?? 0) &&
    uncachedTokens < (each.to ?? Number.POSITIVE_INFINITY);
  const chosen = classes.find((each) => !isOpen(each) && fits(each)) ?? classes.find(isOpen) ?? classes[0];
  return (chosen as QueueClass).name;
}

const isOpen = ({ family, from, to }: QueueClass) => family === undefined && from === undefined && to === undefined;

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

interface Lane<T> {
  /** The most urgent last. */
  readonly members: Ranked<T>[];
  /** What its first was short of when it was offered last. */
  shortOf: Pool;
}

interface Line<T> {
  readonly config: QueueClass;
  readonly lanes: Map<string, Lane<T>>;
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  /** Uncached tokens it may dispatch. */
  deficit: number;
}

const lineOf = <T>(config: QueueClass): Line<T> => ({
  config,
  lanes: new Map(),
  requests: 0,
  promptTokens: 0,
  cachedTokens: 0,
  deficit: 0,
});

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
  readonly #config: QueueConfig;
  readonly #again: Line<T> = lineOf({ name: '', policy: 'fcfs', quantum: 1 });
  readonly #ring: Line<T>[];
  readonly #byNum = new Map<number, Ranked<T>>();
  #cursor = 0;
  #arrivals = 0;
  /** No deadline is earlier. */
  #earliest = Number.POSITIVE_INFINITY;

  /** Throws RangeError as `queueConfig` does. */
  constructor(config: QueueConfig) {
    this.#config = queueConfig(config);
    this.#ring = config.classes.map((each) => lineOf(each));
  }

  get size(): number {
    return this.#byNum.size;
  }

  /** How many wait to be tried again. */
  get again(): number {
    return this.#again.requests;
  }

  /** How many wait in each class. */
  depths(): readonly { readonly class: string; readonly waiting: number }[] {
    return this.#ring.map(({ config, requests }) => ({ class: config.name, waiting: requests }));
  }

  has(num: number): boolean {
    return this.#byNum.has(num);
  }

  /** Somebody waits for the same and goes first: there is no sense in offering this one now. */
  holdsBack(waiting: Waiting<T>): boolean {
    const line = this.#lineOf(waiting);
    const first = line.lanes.get(waiting.lane)?.members.at(-1);
    return first !== undefined && compare(first, this.#ranked(line, waiting)) > 0;
  }

  /**
   * Undefined: it waits. `shortOf`: what it was found to lack; undefined where `holdsBack` spared the look. `workers` scales the limits of
   * its class; with none at the moment they are those of one, so that it may return.
   */
  enqueue(waiting: Waiting<T>, workers: number, shortOf?: Pool): EnqueueRefusal | undefined {
    const line = this.#lineOf(waiting);
    const lane = line.lanes.get(waiting.lane);
    const pool = shortOf ?? lane?.shortOf ?? 'decode';
    const refusal = line === this.#again ? undefined : this.#over(line, lane, waiting, workers, pool);
    if (refusal !== undefined) return refusal;
    const ranked = this.#ranked(line, waiting);
    this.#arrivals++;
    if (lane === undefined) line.lanes.set(waiting.lane, { members: [ranked], shortOf: pool });
    else {
      lane.members.splice(placeIn(lane.members, ranked), 0, ranked);
      lane.shortOf = pool;
    }
    this.#byNum.set(waiting.num, ranked);
    line.requests += 1;
    line.promptTokens += waiting.promptTokens;
    line.cachedTokens += waiting.cachedTokens;
    this.#earliest = Math.min(this.#earliest, waiting.deadlineMs);
    return undefined;
  }

  /** Takes one out, whoever's turn it is; undefined if it does not wait. */
  remove(num: number): Waiting<T> | undefined {
    const ranked = this.#byNum.get(num);
    if (ranked === undefined) return undefined;
    const { waiting } = ranked;
    const line = this.#lineOf(waiting);
    const { members } = line.lanes.get(waiting.lane) as Lane<T>;
    members.splice(placeIn(members, ranked), 1);
    if (members.length === 0) line.lanes.delete(waiting.lane);
    this.#byNum.delete(num);
    line.requests -= 1;
    line.promptTokens -= waiting.promptTokens;
    line.cachedTokens -= waiting.cachedTokens;
    // What an empty class did not use is not kept for later.
    if (line.requests === 0) line.deficit = 0;
    return waiting;
  }

  /** It gave up waiting. Only this attempt: a later one may wait already. */
  drop(num: number, attempt: number): void {
    if (this.#byNum.get(num)?.waiting.attempt === attempt) this.remove(num);
  }

  /** Takes out and returns what is past its deadline. Cheap while nothing is. */
  expire(nowMs: number): Waiting<T>[] {
    if (nowMs < this.#earliest) return [];
    const gone: Waiting<T>[] = [];
    this.#earliest = Number.POSITIVE_INFINITY;
    for (const { waiting } of this.#byNum.values()) {
      if (waiting.deadlineMs <= nowMs) gone.push(waiting);
      else this.#earliest = Math.min(this.#earliest, waiting.deadlineMs);
    }
    for (const { num } of gone) this.remove(num);
    return gone;
  }

  /**
   * Offers each in turn. `place` dispatches it, or names the pool that has no room for it; then whatever waits behind it in its lane waits
   * on.
   */
  offer(place: (waiting: Waiting<T>) => Pool | undefined): void {
    const shut = new Set<Lane<T>>();
    const next = (line: Line<T>) => first(line, shut);
    const placed = ({ lane, ranked }: Head<T>) => {
      const shortOf = place(ranked.waiting);
      if (shortOf === undefined) this.remove(ranked.waiting.num);
      else {
        lane.shortOf = shortOf;
        shut.add(lane);
      }
      return shortOf === undefined;
    };
    for (let head = next(this.#again); head !== undefined; head = next(this.#again)) placed(head);
    this.#offerInTurn(next, placed);
  }

  /**
   * Deficit round robin, without going round: of all classes the one that could pay for its first after the fewest visits is next, and the
   * others have the credit of the visits that they had meanwhile. Credit is given when somebody is dispatched, so a search in vain changes
   * no shares.
   */
  #offerInTurn(next: (line: Line<T>) => Head<T> | undefined, placed: (head: Head<T>) => boolean): void {
    const count = this.#ring.length;
    for (;;) {
      let winner: { line: Line<T>; head: Head<T>; visits: number; at: number } | undefined;
      const others: { line: Line<T>; at: number }[] = [];
      for (let at = 0; at < count; at++) {
        const line = this.#ring[(this.#cursor + at) % count] as Line<T>;
        const head = next(line);
        if (head === undefined) continue;
        others.push({ line, at });
        const visits = Math.max(1, Math.ceil((head.ranked.cost - line.deficit) / line.config.quantum));
        if (winner === undefined || visits < winner.visits) winner = { line, head, visits, at };
      }
      if (winner === undefined) return;
      const { line, head, visits, at } = winner;
      if (!placed(head)) continue;
      for (const other of others) {
        if (other.line !== line) other.line.deficit += other.line.config.quantum * (visits - (other.at < at ? 0 : 1));
      }
      // The last of its class is out already, and with it the deficit.
      if (line.requests > 0) {
        if (line.deficit < head.ranked.cost) line.deficit += line.config.quantum * visits;
        line.deficit -= head.ranked.cost;
      }
      // It stays its turn while what it has left pays for the next one.
      const following = next(line);
      const stays = following !== undefined && line.deficit >= following.ranked.cost;
      this.#cursor = (this.#cursor + at + (stays ? 0 : 1)) % count;
    }
  }

  #over(
    line: Line<T>,
    lane: Lane<T> | undefined,
    waiting: Waiting<T>,
    workers: number,
    pool: Pool,
  ): EnqueueRefusal | undefined {
    const { limit, pools } = this.#config;
    if (this.#byNum.size - this.#again.requests >= limit) return 'limit';
    const most = pools?.[pool];
    if (most !== undefined && this.#waitingFor(pool) >= most) return 'pool';
    if (lane === undefined && this.#ring.reduce((sum, { lanes }) => sum + lanes.size, 0) >= mostLanes) return 'lanes';
    const scale = Math.max(1, workers);
    const over = (bound: number | undefined, sum: number) => bound !== undefined && sum > bound * scale;
    const { config } = line;
    if (over(config.requestsPerWorker, line.requests + 1)) return 'requests';
    if (over(config.promptTokensPerWorker, line.promptTokens + waiting.promptTokens)) return 'prompt-tokens';
    if (over(config.cachedTokensPerWorker, line.cachedTokens + waiting.cachedTokens)) return 'cached-tokens';
    return undefined;
  }

  #waitingFor(pool: Pool): number {
    let sum = 0;
    for (const { lanes } of this.#ring) {
      for (const { members, shortOf } of lanes.values()) if (shortOf === pool) sum += members.length;
    }
    return sum;
  }

  #lineOf(waiting: Waiting<T>): Line<T> {
    if (waiting.attempt > 1) return this.#again;
    return this.#ring.find(({ config }) => config.name === waiting.class) ?? (this.#ring[0] as Line<T>);
  }

  #ranked({ config }: Line<T>, waiting: Waiting<T>): Ranked<T> {
    return {
      waiting,
      urgency: urgency[config.policy](waiting),
      arrival: this.#arrivals,
      cost: Math.max(1, waiting.promptTokens - waiting.cachedTokens),
    };
  }
}

interface Head<T> {
  readonly lane: Lane<T>;
  readonly ranked: Ranked<T>;
}

/** The most urgent of the lanes that are not shut. */
function first<T>({ lanes }: Line<T>, shut: ReadonlySet<Lane<T>>): Head<T> | undefined {
  let lane: Lane<T> | undefined;
  let ranked: Ranked<T> | undefined;
  for (const each of lanes.values()) {
    if (shut.has(each)) continue;
    const head = each.members.at(-1) as Ranked<T>;
    if (ranked !== undefined && compare(head, ranked) < 0) continue;
    lane = each;
    ranked = head;
  }
  return lane === undefined || ranked === undefined ? undefined : { lane, ranked };
}
