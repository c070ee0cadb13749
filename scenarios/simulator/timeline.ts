/** Virtual time: what happens when, earliest first, and in the order of asking where times are equal. */

export interface Timeline {
  /** Milliseconds since the beginning. */
  now(): number;
  /** Runs `happen` in `ms`; 0 or less: at the present instant, after what waits for it already. Returns what undoes it. */
  after(ms: number, happen: () => void): () => void;
  /** When the next event is; Infinity: nothing is planned. */
  next(): number;
  /** Moves to the next event and lets it happen. */
  step(): void;
  /** Events that happened so far. */
  readonly events: number;
}

interface Planned {
  readonly at: number;
  readonly order: number;
  happen: (() => void) | undefined;
}

export function createTimeline(): Timeline {
  const heap: Planned[] = [];
  let now = 0;
  let order = 0;
  let events = 0;

  const sooner = (a: Planned, b: Planned) => a.at < b.at || (a.at === b.at && a.order < b.order);

  function push(planned: Planned): void {
    let at = heap.push(planned) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = heap[parent] as Planned;
      if (!sooner(planned, above)) break;
      heap[at] = above;
      at = parent;
    }
    heap[at] = planned;
  }

  function pop(): Planned {
    const first = heap[0] as Planned;
    const last = heap.pop() as Planned;
    if (heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      const right = heap[child + 1];
      if (right !== undefined && sooner(right, heap[child] as Planned)) child++;
      const below = heap[child] as Planned;
      if (!sooner(below, last)) break;
      heap[at] = below;
      at = child;
    }
    heap[at] = last;
    return first;
  }

  /** What was undone is dropped when its turn comes. */
  function skip(): void {
    while (heap.length > 0 && heap[0]?.happen === undefined) pop();
  }

  return {
    now: () => now,
    after(ms, happen) {
      const planned: Planned = { at: now + Math.max(0, ms), order: ++order, happen };
      push(planned);
      return () => {
        planned.happen = undefined;
      };
    },
    next() {
      skip();
      return heap[0]?.at ?? Number.POSITIVE_INFINITY;
    },
    step() {
      skip();
      if (heap.length === 0) return;
      const { at, happen } = pop();
      now = at;
      events++;
      happen?.();
    },
    get events() {
      return events;
    },
  };
}
