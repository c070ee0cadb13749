/**
 * The fault door: makes an actor of a running process throw or never return, or its engine stop stepping, so that the fault matrix
 * (bench/faults.ts) and specs can see what becomes of the requests. It exists only on a node started with `faults.enabled`; any
 * other node refuses, and none of this is on the path of its messages.
 */
import type { Behaviour, Kernel, World } from '../actors/index.js';
import type { Engine, EngineLoad, EngineStep } from '../gpu/index.js';
import type { LinkFault } from './link.js';

export type Fault =
  /** The actor's next message makes its handler throw. `actor` is the last part of its address, e.g. `router`. */
  | { readonly kind: 'throw'; readonly actor: string }
  /** The actor's next message makes its handler stand still, and with it the thread of its process. */
  | { readonly kind: 'hang'; readonly actor: string }
  /** The engine takes no further step while the event loop behind it lives. Only workers have one. */
  | { readonly kind: 'wedge' }
  /** The next block that a prefill worker's engine exports arrives with another checksum than its bytes have. */
  | { readonly kind: 'corrupt' }
  /** The process's wall clock is `offsetMs` ahead of the machine's, behind it if negative; its monotonic clock is not touched. */
  | { readonly kind: 'clock'; readonly offsetMs: number }
  /** The node's, not the process's: see link.ts. */
  | LinkFault;

export interface FaultDoor {
  /** The same kernel; actors it spawns from now on can be made to fail. */
  kernel(kernel: Kernel): Kernel;
  /** The same world with a wall clock that can be set. */
  world(world: World): World;
  /** Changes `engine` in place so that it can be wedged and its exports be spoilt. */
  engine(engine: Engine): void;
  /** Throws a TypeError for anything that is not a Fault, or that this process has nothing for. */
  inject(fault: unknown): void;
}

/** A process that nobody kills ends its hang by itself: a test that went wrong must not leave it behind for ever. */
const hangMs = 600_000;
const furthestMs = 365 * 24 * 3_600_000;

export function openFaultDoor(): FaultDoor {
  const armed = new Map<string, 'throw' | 'hang'>();
  const actors = new Set<string>();
  let wedge: (() => void) | undefined;
  let corrupt: (() => void) | undefined;
  let offsetMs = 0;

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
    world: (world) => ({ ...world, wallTime: () => world.wallTime() + offsetMs }),
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
      let spoils = false;
      const passed = (step: EngineStep) => {
        if (!spoils || step.exported.length === 0) return step;
        spoils = false;
        return spoilt(step);
      };
      engine.start = (sink) =>
        start({
          step: (step) => {
            if (stuck === undefined) sink.step(passed(step));
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
      corrupt = () => {
        spoils = true;
      };
      wedge = () => {
        stuck ??= load();
      };
    },
    inject(fault) {
      const { kind, actor, offsetMs: ahead } = fault as { kind?: unknown; actor?: unknown; offsetMs?: unknown };
      if (kind === 'wedge' && wedge !== undefined) wedge();
      else if (kind === 'corrupt' && corrupt !== undefined) corrupt();
      else if (kind === 'clock' && typeof ahead === 'number' && Math.abs(ahead) <= furthestMs) offsetMs = ahead;
      else if ((kind === 'throw' || kind === 'hang') && typeof actor === 'string' && actors.has(actor))
        armed.set(actor, kind);
      else throw new TypeError(`no such fault here: ${String(kind)} ${String(actor ?? '')}`);
    },
  };
}

/** The first exported block with a checksum that is not that of its bytes. */
function spoilt(step: EngineStep): EngineStep {
  const [first, ...rest] = step.exported;
  const [block, ...blocks] = first?.blocks ?? [];
  if (first === undefined || block === undefined) return step;
  const digit = block.checksum.startsWith('0') ? '1' : '0';
  const wrong = { ...block, checksum: digit + block.checksum.slice(1) };
  return { ...step, exported: [{ ...first, blocks: [wrong, ...blocks] }, ...rest] };
}
