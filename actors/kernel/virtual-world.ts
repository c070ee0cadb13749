/**
 * A world for specs and the simulator: the clock moves when it is told to, randomness comes from a seed, and what actors
 * send is kept for inspection.
 */
import type { Address, Body, Head, MessageType, Post, StepFrame } from '../../transport/index.js';
import type { Log, World } from './contract.js';
import { idSource } from './id.js';

export type Posted =
  | {
      readonly kind: 'command' | 'frame' | 'query';
      readonly from: Address;
      readonly to: Address;
      readonly type: MessageType;
      readonly body: unknown;
      readonly head: Head | undefined;
    }
  | { readonly kind: 'step'; readonly gateway: string; readonly frame: StepFrame };

export interface LogLine {
  readonly level: keyof Log;
  readonly actor: string;
  readonly message: string;
  readonly fields: Record<string, unknown> | undefined;
}

export interface VirtualWorldOptions {
  /** Default 1. */
  readonly seed?: number;
  /** Wall clock at now() = 0, milliseconds since 1970. Default 2026-01-01. */
  readonly epochMs?: number;
  /** Answers in place of the default: commands are stored, queries rejected with NET_NO_RESPONDER. */
  readonly post?: Partial<Post>;
}

export interface VirtualWorld extends World {
  /** Everything posted so far, oldest first. */
  readonly posted: readonly Posted[];
  readonly logged: readonly LogLine[];
  /** Timers that have not fired. */
  readonly timers: number;
  /** Moves the clock, firing what is due in order of time, then of setting; between two timers calls `settle`. */
  advance(ms: number, settle?: () => void): void;
  /** Moves the clock to the next timer and fires it; false if there is none. */
  fireNext(): boolean;
}

/** mulberry32: small, fast, and equal on every machine. [0, 1). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function virtualWorld({
  seed = 1,
  epochMs = 1_767_225_600_000,
  post = {},
}: VirtualWorldOptions = {}): VirtualWorld {
  interface Timer {
    readonly at: number;
    readonly order: number;
    readonly fire: () => void;
  }
  const timers = new Set<Timer>();
  const posted: Posted[] = [];
  const logged: LogLine[] = [];
  const random = seededRandom(seed);
  let now = 0;
  let order = 0;

  const wallTime = (): number => epochMs + now;

  const next = (): Timer | undefined => {
    let first: Timer | undefined;
    for (const timer of timers) {
      if (first === undefined || timer.at < first.at || (timer.at === first.at && timer.order < first.order))
        first = timer;
    }
    return first;
  };

  const fire = (timer: Timer): void => {
    timers.delete(timer);
    now = Math.max(now, timer.at);
    timer.fire();
  };

  const line =
    (level: keyof Log, actor: string) =>
    (message: string, fields?: Record<string, unknown>): void => {
      logged.push({ level, actor, message, fields });
    };

  const recorded: Post = {
    command(from, to, type, body, head) {
      posted.push({ kind: 'command', from, to, type, body, head });
      return post.command?.(from, to, type, body, head) ?? Promise.resolve();
    },
    frame(from, to, type, body, head) {
      posted.push({ kind: 'frame', from, to, type, body, head });
      post.frame?.(from, to, type, body, head);
    },
    step(gateway, frame) {
      posted.push({ kind: 'step', gateway, frame });
      post.step?.(gateway, frame);
    },
    query<T extends MessageType, R extends MessageType>(
      from: Address,
      to: Address,
      type: T,
      body: Body<T>,
      answer: R,
      timeoutMs: number,
    ): Promise<Body<R>> {
      posted.push({ kind: 'query', from, to, type, body, head: undefined });
      if (post.query !== undefined) return post.query(from, to, type, body, answer, timeoutMs);
      return Promise.reject(Object.assign(new Error('nobody answers'), { code: 'NET_NO_RESPONDER' }));
    },
  };

  return {
    posted,
    logged,
    get timers() {
      return timers.size;
    },
    advance(ms, settle) {
      const until = now + ms;
      settle?.();
      for (let timer = next(); timer !== undefined && timer.at <= until; timer = next()) {
        fire(timer);
        settle?.();
      }
      now = until;
    },
    fireNext() {
      const timer = next();
      if (timer === undefined) return false;
      fire(timer);
      return true;
    },
    now: () => now,
    wallTime,
    random,
    id: idSource(wallTime, random),
    setTimer(ms, run) {
      const timer: Timer = { at: now + Math.max(0, ms), order: ++order, fire: run };
      timers.add(timer);
      return () => {
        timers.delete(timer);
      };
    },
    post: recorded,
    log: (actor) => ({
      debug: line('debug', actor),
      info: line('info', actor),
      warn: line('warn', actor),
      error: line('error', actor),
    }),
  };
}
