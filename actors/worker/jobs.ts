/** What a worker knows of the requests it serves: by engine key for the data path, by (gateway, number) for messages. */
import {
  type Address,
  address,
  type BlockRef,
  type Body,
  type Envelope,
  type FrameItem,
  type Work,
} from '../../transport/index.js';

export type TokenLogprobs = NonNullable<Body<'Resynced'>['items'][number]['logprobs']>;

/** A frame's item that more tokens may join. */
export type OpenItem = { -readonly [K in keyof FrameItem]: K extends 'tokens' ? number[] : FrameItem[K] };

/** Tokens of one choice that this worker has sent, kept until the request's end is acknowledged (for Resync). */
export interface Retained {
  /** Position of tokens[0]. */
  readonly from: number;
  readonly tokens: number[];
  /** One for each token, or undefined if the request wants none. */
  readonly logprobs: TokenLogprobs | undefined;
  finish: number;
  /** The newest item of its tokens, and the round of frames that it leaves with. */
  item: OpenItem | undefined;
  round: number;
}

/** What tracing gives for a job's time on this worker. */
export interface JobSpan {
  end(facts: Readonly<Record<string, string | number>>): void;
}

export interface Job {
  /** Its name in the engine: another one after the engine was asked for something else. */
  key: number;
  readonly gateway: string;
  readonly num: number;
  readonly attempt: number;
  readonly req: string;
  readonly trace: string | undefined;
  /** The frontend that answers go to, whoever sent the command. */
  readonly frontend: Address;
  readonly work: Work;
  /** The other leg's incarnation; undefined when this worker does both, or nobody has taken the prompt yet. */
  peer: string | undefined;
  /** D: the prompt is left to whoever takes it from the queue. */
  offer: Offer | undefined;
  /** D: blocks of the peer are here or on their way. */
  pulled: boolean;
  /** P: it came from the queue, which is told by this number. */
  ticket: number | undefined;
  /** Verdict came. */
  accepted: boolean;
  /** The gateway was sent an Accepted. A job that is done before the next sweep needs none: its tokens say it all. */
  told: boolean;
  /** Prompt blocks that D had. */
  haveBlocks: number;
  phase: 'held' | 'computing' | 'handing' | 'decoding';
  readonly retained: Map<number, Retained>;
  /** Exported so far (P), or lent to whoever computes the prompt (D). */
  readonly blocks: BlockRef[];
  cachedTokens: number;
  cachedSent: boolean;
  /** The request's own deadline: nobody reads answers after it. */
  readonly deadlineAt: number;
  /** When the present phase ends by itself; never later than it must, so that no job outlives its purpose. */
  expiresAt: number;
  /** Last time the peer or the gateway heard of progress. */
  toldAt: number;
  /** Undefined unless the request is traced. */
  span: JobSpan | undefined;
  /** Why it ended here, for its span. */
  outcome: string;
}

/** A prompt on the prefill queue, as the decode worker that put it there sees it. */
export interface Offer {
  /** Counts how often it was put there. */
  round: number;
  /** Which of these was taken; 0: none yet. */
  taken: number;
  /** Takers that were lost on it. */
  readonly lost: Set<string>;
  /** If nobody has taken it by then, D computes it. */
  takeBy: number;
  /** The engine is about to say what of the prefix it lends: whoever has taken the prompt waits for that. */
  lending: boolean;
}

/** A prompt that this prefill worker has taken from the queue, until D sends it. */
export interface Take {
  readonly ticket: number;
  readonly attempt: number;
  readonly decode: string;
  /** D has not answered by then: somebody else may try. */
  readonly until: number;
}

export type JobCommand = Envelope<'Reserve' | 'Prefill' | 'Generate'>;

export interface Jobs {
  readonly byKey: Map<number, Job>;
  readonly byRequest: Map<string, Job>;
  /** Cancels that overtook what they cancel: request → attempt and when to forget it. */
  readonly tombstones: Map<string, { readonly attempt: number; readonly until: number }>;
  nextKey: number;
  /** Accepted jobs that are over. */
  ended: number;
}

const tombstoneMs = 60_000;
/** Oldest go first beyond this: a tombstone that is missed costs one wasted computation, never a wrong answer. */
const tombstoneLimit = 10_000;

export function newJobs(): Jobs {
  return { byKey: new Map(), byRequest: new Map(), tombstones: new Map(), nextKey: 1, ended: 0 };
}

export const frontendOf = (gateway: string): Address => address('gateway', gateway, 'frontend');

export const requestKey = (gateway: string, num: number) => `${gateway}/${num}`;

export function openJob(jobs: Jobs, command: JobCommand, peer: string | undefined, now: number): Job {
  const { reply, work } = command.body;
  const job: Job = {
    key: jobs.nextKey++,
    gateway: reply.gateway,
    num: reply.num,
    attempt: command.attempt,
    req: command.req,
    trace: command.trace,
    frontend: frontendOf(reply.gateway),
    work,
    peer,
    offer: undefined,
    ticket: undefined,
    pulled: false,
    accepted: false,
    told: false,
    haveBlocks: 0,
    phase: 'held',
    retained: new Map(),
    blocks: [],
    cachedTokens: 0,
    cachedSent: false,
    deadlineAt: now + command.budgetMs,
    expiresAt: now + command.budgetMs,
    toldAt: now,
    span: undefined,
    outcome: 'ended',
  };
  jobs.byKey.set(job.key, job);
  jobs.byRequest.set(requestKey(job.gateway, job.num), job);
  return job;
}

/** The engine forgets a key at its own time: what is asked of it next has a new one. */
export function renameJob(jobs: Jobs, job: Job): void {
  jobs.byKey.delete(job.key);
  job.key = jobs.nextKey++;
  jobs.byKey.set(job.key, job);
}

export function closeJob(jobs: Jobs, job: Job): void {
  if (jobs.byKey.delete(job.key) && job.accepted) jobs.ended++;
  const key = requestKey(job.gateway, job.num);
  if (jobs.byRequest.get(key) === job) jobs.byRequest.delete(key);
  job.span?.end({
    outcome: job.outcome,
    req: job.req,
    attempt: job.attempt,
    prompt_tokens: job.work.prompt.length,
    cached_tokens: job.cachedTokens,
    blocks: job.blocks.length,
  });
}

export function bury(jobs: Jobs, request: string, attempt: number, now: number): void {
  jobs.tombstones.delete(request);
  jobs.tombstones.set(request, { attempt, until: now + tombstoneMs });
  if (jobs.tombstones.size <= tombstoneLimit) return;
  for (const oldest of jobs.tombstones.keys()) {
    jobs.tombstones.delete(oldest);
    break;
  }
}

export function isBuried(jobs: Jobs, request: string, attempt: number): boolean {
  return attempt <= (jobs.tombstones.get(request)?.attempt ?? 0);
}

export function sweepTombstones(jobs: Jobs, now: number): void {
  for (const [request, { until }] of jobs.tombstones) if (now > until) jobs.tombstones.delete(request);
}
