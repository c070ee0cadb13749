/** What the router can be told and asked, and what it answers. */
import type { KvIndexStats } from '../../gpu/index.js';
import type { InstanceInfo, KvOp } from '../../transport/index.js';
import type { Ref } from '../kernel/contract.js';
import type { Suspicion } from '../registry/liveness.js';
import type { Outcome, RouteRequest } from './choose.js';
import type { Inhibited } from './inhibition.js';
import type { ReplicaMessage } from './replica-sync.js';
import type { ReplicaFacts } from './replicas.js';
import type { RouteRecord } from './route-log.js';
import type { RouterTuning } from './tuning.js';
import type { Unroutable } from './wishes.js';

export type RouterReply =
  | {
      readonly type: 'Routed';
      readonly num: number;
      readonly attempt: number;
      readonly prefill: string | undefined;
      readonly decode: string;
    }
  /** It waits; `Routed` or `Unroutable` follows. */
  | {
      readonly type: 'Queued';
      readonly num: number;
      readonly attempt: number;
      /** Some worker serves its model, though not now. */
      readonly served: boolean;
    }
  | {
      readonly type: 'Unroutable';
      readonly num: number;
      readonly attempt: number;
      readonly code: Unroutable;
    };

export type RouterMessage =
  | { readonly type: 'Route'; readonly request: RouteRequest; readonly replyTo: Ref<RouterReply> }
  /** The attempt is over, or gave up waiting: every unit it holds is free again. Repeats are harmless. */
  | { readonly type: 'Release'; readonly num: number; readonly attempt: number; readonly end?: AttemptEnd }
  /** Whoever computes its prompt has done so, with so many tokens from its cache. */
  | {
      readonly type: 'FirstToken';
      readonly num: number;
      readonly attempt: number;
      /** Undefined: the message that said so was lost. */
      readonly cachedTokens: number | undefined;
    }
  /** What runs and decodes, once a second: [num, attempt, tokens of all its choices so far]. */
  | { readonly type: 'Grown'; readonly requests: readonly (readonly [number, number, number])[] }
  /** Its prompt is computed and D decodes: P's unit is free, D's is not, and both have shown that they work. */
  | { readonly type: 'PrefillDone'; readonly num: number; readonly attempt: number }
  | { readonly type: 'InstanceUp'; readonly info: InstanceInfo }
  | {
      readonly type: 'InstanceGone';
      readonly incarnation: string;
      readonly reason: string;
      readonly frontend: Ref<WorkerLoss>;
    }
  | {
      readonly type: 'Load';
      readonly incarnation: string;
      readonly busySlots: number;
      readonly waiting: number;
      readonly usedKvBlocks: number;
    }
  /** What a worker rank holds has changed, in the order of its own reports. */
  | { readonly type: 'KvChange'; readonly incarnation: string; readonly rank: number; readonly ops: readonly KvOp[] }
  /** Why did a request go where it went? Empty: it is not known, or forgotten. */
  | {
      readonly type: 'Explain';
      readonly id: string;
      readonly replyTo: Ref<{ readonly records: readonly RouteRecord[] }>;
    }
  /** Where would it go now? Nothing is booked. */
  | { readonly type: 'DryRun'; readonly request: RouteRequest; readonly replyTo: Ref<DryRunOutcome> }
  /** From now on these hold; undefined: that threshold is off. Out of range they are a RangeError, so whoever tells has checked them. */
  | { readonly type: 'Tune'; readonly tuning: Partial<RouterTuning> }
  /** It says nothing, or its engine stands still: nothing goes there until it is `Cleared`, and then a probe first. */
  | {
      readonly type: 'Suspect';
      readonly incarnation: string;
      readonly code: Suspicion;
      readonly frontend: Ref<WorkerLoss>;
    }
  | { readonly type: 'Cleared'; readonly incarnation: string }
  | ReplicaMessage
  | { readonly type: 'Facts'; readonly replyTo: Ref<RouterFacts> };

/**
 * What the frontend has to hear of a worker. The router passes it on, behind the last request that it placed there: told by another way,
 * that one would be on nobody's account.
 */
export type WorkerLoss =
  | { readonly type: 'WorkerGone'; readonly incarnation: string; readonly reason: string }
  /** It lives, perhaps, but nothing can be expected of it now. */
  | { readonly type: 'WorkerSuspect'; readonly incarnation: string; readonly code: Suspicion };

/** How an attempt ended, as far as it says something of its workers. Absent: it does not. */
export type AttemptEnd = 'served' | { readonly worker: string; readonly code: string };

export interface DryRunOutcome extends Outcome {
  /** It could not be served at all. */
  readonly refusal?: Unroutable;
}

export interface RouterFacts {
  /** Requests that wait for a worker. */
  readonly queued: number;
  /** By class, and those that are tried again as `again`. */
  readonly waiting: readonly { readonly class: string; readonly waiting: number }[];
  /** How often a request was refused a place, by reason. */
  readonly refused: Readonly<Record<string, number>>;
  /** How many are known, and how often one began, stayed where it was, or could not. */
  readonly sessions: { readonly size: number; readonly new: number; readonly kept: number; readonly moved: number };
  /** Workers that are over a threshold. */
  readonly busy: readonly string[];
  readonly inhibited: readonly Inhibited[];
  /** Workers that say nothing or stand still, with the reason. */
  readonly suspects: readonly { readonly incarnation: string; readonly reason: string }[];
  /** How often a worker or pair was put out of routing. */
  readonly inhibitions: number;
  /** Undefined: caches do not matter in this mode. */
  readonly index: KvIndexStats | undefined;
  readonly hits: Readonly<Hits>;
  readonly replicas: ReplicaFacts;
}

/** Prompt tokens of attempts that gave a first token. */
export interface Hits {
  prompt: number;
  /** Of those, tokens that a cache was expected to have, and that one had. */
  expected: number;
  cached: number;
  /** Expected and not there; there and not expected. */
  missed: number;
  unforeseen: number;
}
