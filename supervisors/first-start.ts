/**
 * The first start of a node. A supervisor starts its children one after the other and ends at the first that cannot start; loading weights takes seconds, and a process
 * that was killed says nothing about whether it can start. So the broker comes first, then all others at once, and what is killed before it is ready is tried again for as
 * long as a start may take. What ends by itself cannot start: the node ends with its reason.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { isSupervisorError } from './errors.js';
import type { Child, ChildSpec, Running, SupervisionErrorCode, Supervisor } from './otp/index.js';

export interface Tenacity {
  readonly minMs: number;
  readonly maxMs: number;
  /** Names the present life of what the child cannot do without; a start during which it changed has failed for no reason of its own. */
  ground(): unknown;
}

/** `child`, whose first start is repeated, with growing pauses, until it succeeds, fails for a reason of its own, or is aborted. */
export function tenacious(child: Child, { minMs, maxMs, ground }: Tenacity): Child {
  let begun = false;
  return {
    async start(abort) {
      for (let pauseMs = minMs; ; pauseMs = Math.min(2 * pauseMs, maxMs)) {
        const before = ground();
        try {
          const life = await child.start(abort);
          begun = true;
          return life;
        } catch (error) {
          const excused = isSupervisorError(error, 'SUP_START_KILLED') || ground() !== before;
          if (begun || !excused || abort.aborted) throw error;
          await sleep(pauseMs, undefined, { signal: abort }).catch(() => {});
          if (abort.aborted) throw error;
        }
      }
    },
  };
}

/** Starts all of them at once, as children in this order. Rejects with the first error, while others may still be starting. */
export async function startTogether(tree: Supervisor, life: Running, specs: readonly ChildSpec[]): Promise<void> {
  try {
    await Promise.all(specs.map((spec) => tree.startChild(spec)));
  } catch (error) {
    if ((error as { code?: SupervisionErrorCode }).code !== 'SUP_ABORTED') throw error;
    // Nobody called it off: it gave up, and says why.
    throw ((await life.exit) as { readonly cause?: unknown }).cause ?? error;
  }
}
