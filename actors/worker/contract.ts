/** What a worker is made with, what it can be told, what it keeps, and what its two roles add to it. */
import type { EngineRequest, EngineStep } from '../../gpu/index.js';
import type { Body, Envelope, Head, Leg } from '../../transport/index.js';
import type { GpuMessage, GpuNews } from '../gpu/gpu.js';
import type { Ctx, Ref } from '../kernel/contract.js';
import type { DecodeFirstConfig } from '../router/disagg.js';
import type { Outgoing } from './frames.js';
import type { Job, JobCommand, JobSpan, Jobs, Take } from './jobs.js';

export interface WorkerConfig {
  readonly leg: Leg;
  readonly incarnation: string;
  readonly model: string;
  readonly fingerprint: string;
  readonly kvType: string;
  readonly layout: string;
  readonly blockTokens: number;
  /** Requests that the engine runs at once. */
  readonly slots: number;
  /** Most requests held in any state; one more is refused with WRK_TOO_MANY. */
  readonly maxJobs: number;
  /** D's grant lapses after this without news from P. */
  readonly grantMs: number;
  /** P keeps exported blocks for this long after the prompt is finished. */
  readonly leaseMs: number;
  /** A span for a traced request's time on this worker; undefined while tracing is off. */
  readonly span?: (name: string, traceparent: string) => JobSpan | undefined;
  /** How long output tokens are kept if the end of a request is never acknowledged. */
  readonly keepMs: number;
  /** D, decode-first: which prompts it leaves to the queue until it is told otherwise (PrefillLimits). */
  readonly remotePrefill?: DecodeFirstConfig;
}

export type WorkerMessage =
  | Envelope<'Reserve' | 'Prefill' | 'Generate' | 'PrefillDone' | 'Cancel' | 'KvOffer' | 'KvRelease' | 'Ended'>
  | Envelope<'Taken' | 'TakerLost'>
  | QueueNews
  | GpuNews
  | { readonly type: 'Sweep' }
  /** What was held back to leave together is due. */
  | { readonly type: 'Frames' }
  /** P: token 1 of these is out, and what D must know of them is due. */
  | { readonly type: 'HandOver'; readonly keys: readonly number[] }
  | { readonly type: 'GatewayGone'; readonly incarnation: string }
  /** No new work; `idle` is told once when the last job has ended. */
  | { readonly type: 'Drain'; readonly idle: Ref<{ readonly type: 'Idle' }> }
  | { readonly type: 'ResyncAsk'; readonly body: Body<'Resync'>; readonly replyTo: Ref<Body<'Resynced'>> }
  | { readonly type: 'Undelivered'; readonly key: number; readonly code: string }
  | { readonly type: 'FactsAsk'; readonly replyTo: Ref<WorkerFacts> };

/** What concerns the prefill queue of the decode-first flow and those at its two ends. */
type QueueNews =
  /** A worker of the other role with the same KV comes or goes. */
  | { readonly type: 'PeerSeen'; readonly incarnation: string }
  /** It takes nothing new, and sees through what it has. */
  | { readonly type: 'PeerLeaving'; readonly incarnation: string }
  | { readonly type: 'PeerGone'; readonly incarnation: string }
  /** P: taken from the queue. */
  | (Head & { readonly type: 'Job'; readonly ticket: number; readonly body: Body<'RemotePrefill'> })
  /** D: jobs that nobody has taken; undefined: that cannot be told. */
  | { readonly type: 'Backlog'; readonly key: number; readonly waiting: number | undefined }
  /** D: a job is on the queue; with a code: it is not, for the queue is full or the broker away. */
  | { readonly type: 'Offered'; readonly key: number; readonly round: number; readonly code: string }
  /** The broker was away, and what it held in memory may be gone with it. */
  | { readonly type: 'BrokerBack' }
  | { readonly type: 'PrefillLimits'; readonly limits: DecodeFirstConfig };

export interface WorkerFacts {
  readonly jobs: number;
  /** Slots granted to requests whose prompt is computed elsewhere: the engine has nothing to do for them yet. */
  readonly granted: number;
  readonly accepted: number;
  readonly refused: number;
  readonly ended: number;
  /** Accepted jobs that are neither over nor here: 0, or a defect. */
  readonly leaked: number;
  /** Prompts put on the prefill queue (D); of those, how often a taker was lost and another asked for. */
  readonly offered: number;
  readonly requeued: number;
}

export interface WorkerState {
  readonly jobs: Jobs;
  /** Workers of the other role with the same KV, for D those that may take a prompt. */
  readonly peers: Set<string>;
  /** P: taken from the queue and not sent by D yet, by request. */
  readonly takes: Map<string, Take>;
  /** D: which prompts it leaves to the queue; undefined: none (prefill-first). */
  limits: DecodeFirstConfig | undefined;
  offered: number;
  requeued: number;
  /** Frames sent to each gateway: a hole tells it to resync. */
  readonly frameSeq: Map<string, number>;
  readonly out: Outgoing;
  /** When the last frames left. */
  framedAt: number;
  /** `out` waits for a Frames message. */
  holding: boolean;
  idle: Ref<{ readonly type: 'Idle' }> | undefined;
  accepted: number;
  refused: number;
}

export type WorkerCtx = Ctx<WorkerMessage>;

/** What a role adds to the common worker. */
export interface Role {
  /** Commands this role takes. Each opens a job and asks the engine; `undefined` = not for this role. */
  begin(state: WorkerState, job: Job, command: JobCommand): GpuMessage | undefined;
  /** The engine has taken the job. */
  granted?(state: WorkerState, job: Job, ctx: WorkerCtx): void;
  /** Messages only this role knows. */
  other(state: WorkerState, message: WorkerMessage, ctx: WorkerCtx): void;
  /** After the tokens of a step have left. */
  stepped(state: WorkerState, step: EngineStep, ctx: WorkerCtx): void;
  /** Twice a second, for every job. */
  tick(state: WorkerState, job: Job, now: number, ctx: WorkerCtx): void;
  /** A job is over here, for whatever reason. */
  closed(state: WorkerState, job: Job, ctx: WorkerCtx): void;
  /** At the start, twice a second, and when it begins to drain. */
  swept?(state: WorkerState, now: number, ctx: WorkerCtx): void;
}

/** What a role may do with a job. */
export interface WorkerApi {
  readonly config: WorkerConfig;
  readonly gpu: Ref<GpuMessage>;
  requestOf(job: Job): EngineRequest;
  headOf(of: { req: string; attempt: number; trace?: string | undefined }): Head;
  /** The job a message means, unless it is about an older attempt. */
  find(
    state: WorkerState,
    message: Envelope<'Cancel' | 'Ended' | 'KvOffer' | 'KvRelease' | 'PrefillDone'>,
  ): Job | undefined;
  /** Tells the gateway that the job is taken: when it asks, or when the job is still here at the next sweep. */
  accept(job: Job, ctx: WorkerCtx): void;
  /** The leg broke: the gateway hears why, everything it held is freed. */
  fail(state: WorkerState, job: Job, code: string, message: string, ctx: WorkerCtx): void;
  /** Ends a job without a word to the gateway. */
  drop(state: WorkerState, job: Job, ctx: WorkerCtx): void;
}
