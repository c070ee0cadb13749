/**
 * One simulated operating-system process: its kernel, its clock and its connection. It can be frozen, and then nothing in it runs until it
 * thaws; it can be killed, and then nothing in it ever runs again.
 */
import {
  type Behaviour,
  createKernel,
  idSource,
  type Kernel,
  type Log,
  type Runnable,
  seededRandom,
  type World,
} from '../../actors/index.js';
import { type Bus, type Clock, createPost, type MemoryBroker, type PostOffice } from '../../transport/index.js';
import type { Mutation } from './mutation.js';
import type { Timeline } from './timeline.js';

export interface MachineSurroundings {
  readonly timeline: Timeline;
  readonly broker: MemoryBroker;
  /** Actors of all processes that have a turn coming. */
  readonly turns: { schedule(actor: Runnable): void; forget(actor: Runnable): void };
  /** Bugs that were planted, for specs of the simulator. */
  readonly mutate: Mutation;
  /** Sees actors' states, and what reaches them. */
  watch<M, S>(machine: string, behaviour: Behaviour<M, S>): Behaviour<M, S>;
  log(level: keyof Log, actor: string, message: string, fields: Record<string, unknown> | undefined): void;
}

export interface Machine {
  /** Its incarnation. */
  readonly name: string;
  readonly kernel: Kernel;
  readonly bus: Bus;
  readonly post: PostOffice;
  readonly clock: Clock;
  readonly state: 'running' | 'frozen' | 'dead';
  /** Runs it now, at the thaw, or never. */
  run(happen: () => void): void;
  /** A timer of this process. Returns what undoes it. */
  after(ms: number, happen: () => void): () => void;
  freeze(): void;
  thaw(): void;
  kill(): void;
  /** Its wall clock jumps. */
  skew(ms: number): void;
}

/** Wall clock at the beginning, milliseconds since 1970. */
const epochMs = 1_767_225_600_000;

export function createMachine(around: MachineSurroundings, name: string, seed: number): Machine {
  const { timeline, broker } = around;
  const random = seededRandom(seed);
  let state: Machine['state'] = 'running';
  let skewMs = 0;
  /** What came while it was frozen: due timers and what the network brought. */
  let timers: (() => void)[] = [];
  let arrivals: (() => void)[] = [];

  const wallTime = () => epochMs + timeline.now() + skewMs;
  const hold = (queue: 'timers' | 'arrivals', happen: () => void) => {
    if (state === 'running') happen();
    else if (state === 'frozen') (queue === 'timers' ? timers : arrivals).push(happen);
  };
  const after = (ms: number, happen: () => void) => {
    let undone = false;
    const undo = timeline.after(ms, () =>
      hold('timers', () => {
        if (!undone) happen();
      }),
    );
    return () => {
      undone = true;
      undo();
    };
  };
  const clock: Clock = { now: timeline.now, wallTime, setTimer: after };
  const bus = broker.connect(name, clock);
  const post = createPost(bus);
  const line =
    (level: keyof Log, actor: string) =>
    (message: string, fields?: Record<string, unknown>): void =>
      around.log(level, actor, message, fields);
  const world: World = {
    now: timeline.now,
    wallTime,
    random,
    id: idSource(wallTime, random),
    setTimer: after,
    post: around.mutate.post?.(post) ?? post,
    log: (actor) => ({
      debug: line('debug', actor),
      info: line('info', actor),
      warn: line('warn', actor),
      error: line('error', actor),
    }),
  };
  const mine = new Set<Runnable>();
  const bare = createKernel({
    world,
    dispatcher: {
      schedule(actor) {
        if (state === 'dead') return;
        mine.add(actor);
        around.turns.schedule(actor);
      },
      forget(actor) {
        mine.delete(actor);
        around.turns.forget(actor);
      },
      close() {
        for (const actor of mine) around.turns.forget(actor);
        mine.clear();
      },
    },
  });
  const kernel: Kernel = {
    ...bare,
    get counters() {
      return bare.counters;
    },
    spawn(behaviour, address) {
      const watched = around.watch(name, behaviour);
      return bare.spawn(around.mutate.behaviour?.(watched) ?? watched, address);
    },
  };

  return {
    name,
    kernel,
    bus,
    post,
    clock,
    get state() {
      return state;
    },
    run: (happen) => hold('arrivals', happen),
    after,
    freeze() {
      if (state === 'running') state = 'frozen';
    },
    thaw() {
      if (state !== 'frozen') return;
      state = 'running';
      // A loop that wakes finds both its timers and its sockets ready, and either first.
      const backlog = random() < 0.5 ? [...timers, ...arrivals] : [...arrivals, ...timers];
      timers = [];
      arrivals = [];
      // One after the other, each in a turn of its own, and in order with what comes after.
      for (const happen of backlog) timeline.after(0, () => hold('arrivals', happen));
    },
    kill() {
      if (state === 'dead') return;
      state = 'dead';
      timers = [];
      arrivals = [];
      for (const actor of mine) around.turns.forget(actor);
      mine.clear();
      void bus.close();
    },
    skew(ms) {
      skewMs += ms;
    },
  };
}
