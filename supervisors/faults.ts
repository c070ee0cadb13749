/**
 * The fault door: makes an actor of a running process throw or never return, or its engine stop stepping, so that the fault matrix
 * (bench/faults.ts) and specs can see what becomes of the requests. It exists only on a node started with `faults.enabled`; any
 * other node refuses, and none of this is on the path of its messages.
 */
import type { Behaviour, Kernel } from '../actors/index.js';
import type { Engine, EngineLoad } from '../gpu/index.js';

export type Fault =
  /** The actor's next message makes its handler throw. `actor` is the last part of its address, e.g. `router`. */
  | { readonly kind: 'throw'; readonly actor: string }
  /** The actor's next message makes its handler stand still, and with it the thread of its process. */
  | { readonly kind: 'hang'; readonly actor: string }
  /** The engine takes no further step while the event loop behind it lives. Only workers have one. */
  | { readonly kind: 'wedge' };

export interface FaultDoor {
  /** The same kernel; actors it spawns from now on can be made to fail. */
  kernel(kernel: Kernel): Kernel;
  /** Changes `engine` in place so that it can be wedged. */
  engine(engine: Engine): void;
  /** Throws a TypeError for anything that is not a Fault, or that this process has nothing for. */
  inject(fault: unknown): void;
}

/** A process that nobody kills ends its hang by itself: a test that went wrong must not leave it behind for ever. */
const hangMs = 600_000;

export function openFaultDoor(): FaultDoor {
  const armed = new Map<string, 'throw' | 'hang'>();
  const actors = new Set<string>();
  let wedge: (() => void) | undefined;

  const failing = <M, S>(behaviour: Behaviour<M, S>, actor: string): Behaviour<M, S> => ({
    ...behaviour,
    handle(state, message, ctx) {
      const kind = armed.get(actor);
      if (kind === undefined) return behaviour.handle(state, message, ctx);
      armed.delete(actor);
      if (kind === 'throw') throw new Error(`injected fault in ${actor}`);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, hangMs);
      return behaviour.handle(state, message, ctx);
    },
  });

  return {
    kernel: (kernel) => ({
      ...kernel,
      spawn(behaviour, address) {
        const actor = address.slice(address.lastIndexOf('.') + 1);
        actors.add(actor);
        return kernel.spawn(failing(behaviour, actor), address);
      },
    }),
    engine(engine) {
      const start = engine.start.bind(engine);
      const load = engine.load.bind(engine);
      let stuck: EngineLoad | undefined;
      engine.start = (sink) =>
        start({
          step: (step) => {
            if (stuck === undefined) sink.step(step);
          },
          died: (error) => sink.died(error),
        });
      engine.load = () => {
        if (stuck === undefined) return load();
        // What it was given since stays with it: a wedged engine takes work and finishes none.
        const { busySlots, waiting } = load();
        stuck = {
          ...stuck,
          busySlots: Math.max(stuck.busySlots, busySlots),
          waiting: Math.max(stuck.waiting, waiting),
        };
        return stuck;
      };
      wedge = () => {
        stuck ??= load();
      };
    },
    inject(fault) {
      const { kind, actor } = fault as { kind?: unknown; actor?: unknown };
      if (kind === 'wedge' && wedge !== undefined) wedge();
      else if ((kind === 'throw' || kind === 'hang') && typeof actor === 'string' && actors.has(actor))
        armed.set(actor, kind);
      else throw new TypeError(`no such fault here: ${String(kind)} ${String(actor ?? '')}`);
    },
  };
}
