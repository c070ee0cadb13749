/**
 * A gateway follows what each worker says of its KV blocks, from its entry in the registry until it leaves, and hands it to the router.
 * Whether a report counts is the follower's to judge: the router gets exact states, or none.
 */
import { type Bus, followKv, type InstanceInfo, type KvFollower, type KvOp } from '../../transport/index.js';

/** Of all workers so far. */
export interface KvViewFacts {
  readonly batches: number;
  readonly snapshots: number;
  /** Reports that were missing, and those that were refused. */
  readonly gaps: number;
  readonly faults: number;
  /** Worker ranks whose reports are refused at the moment. */
  readonly quarantined: number;
}

export interface KvViews {
  /** Whoever is there now. */
  follow(live: readonly InstanceInfo[]): void;
  facts(): KvViewFacts;
  stop(): void;
}

export function openKvViews(
  bus: Bus,
  blockTokens: number,
  change: (incarnation: string, rank: number, ops: readonly KvOp[]) => void,
  warn: (facts: Readonly<Record<string, unknown>>, message: string) => void,
): KvViews {
  interface View {
    readonly follower: KvFollower;
    readonly quarantined: Set<number>;
  }
  const views = new Map<string, View>();
  const past = { batches: 0, snapshots: 0, gaps: 0, faults: 0 };

  function open(component: 'prefill' | 'decode', incarnation: string): View {
    const quarantined = new Set<number>();
    const follower = followKv(
      bus,
      // Whatever its entry says: prompts are compared by blocks of this size alone.
      { component, incarnation, blockTokens },
      {
        change(rank, ops) {
          quarantined.delete(rank);
          change(incarnation, rank, ops);
        },
        quarantined(rank, { code, detail }) {
          quarantined.add(rank);
          warn({ worker: incarnation, rank, code, detail }, 'what a worker says of its KV blocks is refused');
        },
      },
    );
    return { follower, quarantined };
  }

  function close(incarnation: string, { follower }: View): void {
    views.delete(incarnation);
    follower.stop();
    for (const key of ['batches', 'snapshots', 'gaps', 'faults'] as const) past[key] += follower.counters[key];
  }

  return {
    follow(live) {
      const there = new Set(live.map(({ incarnation }) => incarnation));
      for (const [incarnation, view] of views) if (!there.has(incarnation)) close(incarnation, view);
      for (const { component, incarnation } of live) {
        if (component !== 'gateway' && !views.has(incarnation)) views.set(incarnation, open(component, incarnation));
      }
    },
    facts() {
      const sum = { ...past, quarantined: 0 };
      for (const { follower, quarantined } of views.values()) {
        for (const key of ['batches', 'snapshots', 'gaps', 'faults'] as const) sum[key] += follower.counters[key];
        sum.quarantined += quarantined.size;
      }
      return sum;
    },
    stop() {
      for (const [incarnation, view] of views) close(incarnation, view);
    },
  };
}
