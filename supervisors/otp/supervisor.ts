/** Supervisors: OTP's semantics for whatever is a Child, in memory or in a process of its own. */
import type { Child, ChildSpec, ChildStatus, Running } from './child.js';
import { SupervisionError } from './errors.js';
import { Life } from './life.js';
import { resolveOptions, type SupervisorOptions } from './options.js';

/**
 * A supervisor is a Child itself: `start` begins a life with the children of its options, and so it nests. Children that
 * were added to an earlier life are not in the next one.
 *
 * A life ends as `shutdown` after `stop`, autoShutdown, or when it gives up (then with a `cause`: SUP_INTENSITY,
 * SUP_CHILD_HUNG), as `killed` after `kill` or an overrun stop. All its children have ended before.
 */
export interface Supervisor extends Child {
  /**
   * Starts the children left to right, each after the one before is up. Rejects with SUP_CHILD_START (its cause is the
   * child's own error) after those already started were stopped, with SUP_ABORTED, or with SUP_RUNNING.
   */
  start(abort?: AbortSignal): Promise<Running>;
  readonly name: string;
  /** In start order; of the last life while there is none. */
  status(): readonly ChildStatus[];
  /** Called after each change of a child's state, in every life. A throw in it is contained. Returns what ends it. */
  onChange(listener: (child: ChildStatus) => void): () => void;

  /** Adds a child after the others and starts it. If it cannot start it is not added: SUP_CHILD_START. */
  startChild(spec: ChildSpec): Promise<Running>;
  /** Stops a child; it stays `down` until restartChild, or until a sibling's failure restarts it by strategy. */
  terminateChild(name: string): Promise<void>;
  /** Starts a child that is `down`. */
  restartChild(name: string): Promise<Running>;
  /**
   * Ends the present life of a child as its specification says and begins the next one: a restart that is wanted, so it neither counts nor
   * waits. A start that fails is a failure like any other: the promise rejects with SUP_CHILD_START, and the child is tried again.
   */
  recycleChild(name: string): Promise<Running>;
  /** Forgets a child that is `down`. */
  deleteChild(name: string): void;
}

/** Throws SUP_SPEC, naming the keys, if the options make no sense. */
export function createSupervisor(options: SupervisorOptions): Supervisor {
  const resolved = resolveOptions(options);
  const { name, clock } = resolved;
  const listeners = new Set<(child: ChildStatus) => void>();
  let lives = 0;
  let life: Life | undefined;
  let running = false;

  const changed = (status: ChildStatus): void => {
    for (const listener of listeners) {
      try {
        listener(status);
      } catch {
        // A listener only looks on; what it makes of the news must not decide about children.
      }
    }
  };

  const present = (): Life => {
    if (life === undefined || !running) throw new SupervisionError('SUP_ABORTED', [name]);
    return life;
  };

  return {
    name,
    async start(abort = new AbortController().signal) {
      if (running) throw new SupervisionError('SUP_RUNNING', [name]);
      running = true;
      const begun = new Life(resolved, `${name}-${++lives}`, changed);
      life = begun;
      void begun.exit.then(() => {
        running = false;
      });
      await begun.begin(abort);
      return begun;
    },
    status() {
      if (life !== undefined) return life.children;
      const since = clock.now();
      return resolved.children.map((child) => ({
        name: child.name,
        state: 'down',
        incarnation: '',
        restarts: 0,
        lastReason: undefined,
        since,
        failures: 0,
        retryAt: 0,
      }));
    },
    onChange(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    startChild: async (spec) => present().startChild(spec),
    terminateChild: async (child) => present().terminateChild(child),
    restartChild: async (child) => present().restartChild(child),
    recycleChild: async (child) => present().recycleChild(child),
    deleteChild: (child) => present().deleteChild(child),
  };
}
