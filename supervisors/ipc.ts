/** What a node supervisor and its child processes say to each other over the IPC channel. */
import type { ExitReason } from '../actors/index.js';
import type { GatewayBoot, WorkerBoot } from './boot.js';
import type { Fault } from './faults.js';
import type { GatewayAnswer, GatewayQuestion } from './route-question.js';

export type Role = 'prefill' | 'decode' | 'gateway';

/** The listening socket does not fit in a message: it goes beside it, as a handle. */
export type BootMessage = WorkerBoot | Omit<GatewayBoot, 'listener'>;

export type ToChild =
  | { readonly type: 'boot'; readonly boot: BootMessage }
  | { readonly type: 'drain'; readonly deadlineMs: number }
  /** Only to a gateway; `id` comes back with the answer. */
  | { readonly type: 'question'; readonly id: number; readonly question: GatewayQuestion }
  /** Only on a node with `faults.enabled`. */
  | { readonly type: 'fault'; readonly fault: Fault };

export type Facts = Readonly<Record<string, number | string>>;

export type FromChild =
  | { readonly type: 'ready' }
  /** Every `factsEveryMs`: shows that the event loop turns. */
  | {
      readonly type: 'facts';
      readonly facts: Facts;
      readonly rssBytes: number;
      /** Processor time of all its threads so far. */
      readonly cpuMs: number;
    }
  | { readonly type: 'answer'; readonly id: number; readonly answer: GatewayAnswer }
  /** Draining began: asked for, or because the parent is gone. */
  | { readonly type: 'draining' }
  /** Last words. */
  | { readonly type: 'ended'; readonly kind: ExitReason['kind']; readonly message: string };

export const factsEveryMs = 500;

/** Exit codes of a role process, after sysexits(3). */
export const exitCodes = { ok: 0, failed: 1, usage: 64, bug: 70 } as const;
