/**
 * What waits for a worker, in order: requests that are tried again before new ones, for their clients see a stream stand; then first
 * come, first served. Those that ask for the same thing form a lane, and a lane whose first does not fit is not looked at further, so
 * that an event costs as much as there are lanes, however many requests wait.
 */
export interface Waits {
  readonly num: number;
  readonly attempt: number;
  readonly model: string;
  readonly choices: number;
  readonly exclude: ReadonlySet<string>;
}

interface Place<T> {
  readonly request: Waits;
  readonly order: number;
  readonly item: T;
}

type Lane<T> = Map<number, Place<T>>;

export class Line<T> {
  readonly #lanes = new Map<string, Lane<T>>();
  readonly #laneOf = new Map<number, string>();
  #order = 0;

  get size(): number {
    return this.#laneOf.size;
  }

  has(num: number): boolean {
    return this.#laneOf.has(num);
  }

  add(request: Waits, item: T): void {
    this.#remove(request.num);
    const key = laneKey(request);
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      lane = new Map();
      this.#lanes.set(key, lane);
    }
    lane.set(request.num, { request, order: this.#order++, item });
    this.#laneOf.set(request.num, key);
  }

  /** It gave up waiting. Only this attempt: a later one may wait already. */
  drop(num: number, attempt: number): void {
    const lane = this.#lanes.get(this.#laneOf.get(num) ?? '');
    if (lane?.get(num)?.request.attempt === attempt) this.#remove(num);
  }

  /** Offers each in turn; `take` says whether it was placed, and one that was not holds back its lane. */
  offer(take: (item: T) => boolean): void {
    const open = new Map(this.#lanes);
    for (let key = first(open); key !== undefined; key = first(open)) {
      const place = head(open.get(key) as Lane<T>) as Place<T>;
      if (!take(place.item)) open.delete(key);
      else {
        this.#remove(place.request.num);
        if (!this.#lanes.has(key)) open.delete(key);
      }
    }
  }

  #remove(num: number): void {
    const key = this.#laneOf.get(num);
    if (key === undefined) return;
    this.#laneOf.delete(num);
    const lane = this.#lanes.get(key);
    lane?.delete(num);
    if (lane?.size === 0) this.#lanes.delete(key);
  }
}

const again = ({ attempt }: Waits) => attempt > 1;

function laneKey(request: Waits): string {
  const { model, choices, exclude } = request;
  return `${again(request) ? 0 : 1}/${choices}/${[...exclude].sort().join(',')}/${model}`;
}

/** A map's first value is the one that came first. */
const head = <T>(lane: Lane<T>): Place<T> | undefined => lane.values().next().value;

/** The lane whose head is next. */
function first<T>(lanes: ReadonlyMap<string, Lane<T>>): string | undefined {
  let best: string | undefined;
  let least: Place<T> | undefined;
  for (const [key, lane] of lanes) {
    const place = head(lane);
    if (place === undefined) continue;
    const sooner =
      least === undefined ||
      (again(place.request) === again(least.request) ? place.order < least.order : again(place.request));
    if (!sooner) continue;
    best = key;
    least = place;
  }
  return best;
}
