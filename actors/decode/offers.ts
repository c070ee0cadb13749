/**
 * The decode-first flow (design 5.3): D holds its grant and leaves a long prompt to whichever prefill worker has a slot free first, by a
 * queue that all of them take from. What nobody takes in time, and what the queue has no room for, D computes itself.
 */
import { address, type BlockRef, type Body, type Envelope, type Head, type PoolRef } from '../../transport/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import { codeOf } from '../kernel/errors.js';
import { wantsRemotePrefill } from '../router/disagg.js';
import type { WorkerApi, WorkerCtx, WorkerMessage, WorkerState } from '../worker/contract.js';
import { type Job, type JobCommand, renameJob, requestKey } from '../worker/jobs.js';

/** The prefill queue of one model's KV, as decode workers use it. */
export interface PrefillQueue {
  /** Resolves when stored. Rejects when the queue is full or the broker away. `head.budgetMs`: how long somebody may take it. */
  put(job: Body<'RemotePrefill'>, head: Head): Promise<unknown>;
  /** Jobs that nobody has taken. Rejects where nobody ever took one. */
  backlog(): Promise<number>;
  /** A prompt of which taker after taker was lost: kept where people look for such. */
  bury(job: Body<'RemotePrefill'>, head: Head, detail: string): void;
}

/** The queue is asked how long it is on the way to the first token: without an answer in this time D does without. */
const backlogMs = 250;
/** A queue of a few prompts is done with by then; what was not taken, D computes. */
const takeMs = 3_000;
/** A job that lies there for longer is of no use to anybody. */
const jobMs = 60_000;
/** Takers that may be lost on one attempt of a request: the prompt may be what kills them. */
const mostLosses = 3;

export function offers(api: WorkerApi, queue: PrefillQueue, pool: () => PoolRef | undefined) {
  const { config } = api;
  const replyOf = ({ gateway, num }: Job) => ({ gateway, num });
  const jobOf = (job: Job, round: number) => ({ reply: replyOf(job), decode: config.incarnation, round });

  /** Is it worth asking? Only what is long even before the cache is looked at needs a grant first. */
  function begin(state: WorkerState, job: Job, command: JobCommand): GpuMessage | undefined {
    const { limits, peers } = state;
    if (command.type !== 'Generate' || limits === undefined || peers.size === 0) return undefined;
    if (!wantsRemotePrefill(job.work.prompt.length, 0, 0, limits)) return undefined;
    job.phase = 'held';
    job.offer = { round: 0, taken: 0, lost: new Set(), takeBy: job.toldAt + takeMs, lending: false };
    return { type: 'Reserve', request: api.requestOf(job) };
  }

  /** D's own prefix hit is known now. */
  function granted(state: WorkerState, job: Job, ctx: WorkerCtx): void {
    if (job.offer !== undefined && job.offer.round > 0) {
      offer(state, job, ctx);
      return;
    }
    const cached = job.haveBlocks * config.blockTokens;
    if (state.limits === undefined || !wantsRemotePrefill(job.work.prompt.length, cached, 0, state.limits)) {
      compute(state, job, ctx);
      return;
    }
    askBacklog(job, ctx);
  }

  function askBacklog({ key }: Job, ctx: WorkerCtx): void {
    ctx.pipe<number>(
      queue.backlog(),
      backlogMs,
      (waiting) => ({ type: 'Backlog', key, waiting }),
      () => ({ type: 'Backlog', key, waiting: undefined }),
    );
  }

  function compared(state: WorkerState, message: WorkerMessage & { type: 'Backlog' }, ctx: WorkerCtx): void {
    const job = state.jobs.byKey.get(message.key);
    if (job?.offer === undefined || job.phase !== 'held' || job.peer !== undefined) return;
    const { limits } = state;
    const cached = job.haveBlocks * config.blockTokens;
    const { waiting } = message;
    if (job.offer.round > 0) {
      // Whoever got it said nothing: it may have been dead already, or frozen.
      if (waiting === 0) put(job, ctx);
      return;
    }
    if (limits && waiting !== undefined && wantsRemotePrefill(job.work.prompt.length, cached, waiting, limits))
      offer(state, job, ctx);
    else compute(state, job, ctx);
  }

  function offer(state: WorkerState, job: Job, ctx: WorkerCtx): void {
    if (job.offer === undefined) return;
    state.offered++;
    job.offer.takeBy = ctx.now() + takeMs;
    lend(job, ctx);
    put(job, ctx);
  }

  /**
   * Whoever takes it was not chosen for its cache, so D lends what it has itself: meanwhile, for it takes no longer than the queue does. To copy a
   * block of 64 tokens twice takes half a millisecond here, to compute it 220, and on a fast GPU several: reading is always cheaper, down
   * to one block.
   */
  function lend(job: Job, ctx: WorkerCtx): void {
    if (job.offer === undefined || job.offer.lending || job.haveBlocks === 0 || job.blocks.length > 0) return;
    if (pool() === undefined) return;
    job.offer.lending = true;
    ctx.tell(api.gpu, { type: 'Lend', key: job.key });
  }

  function lent(state: WorkerState, key: number, blocks: readonly BlockRef[], ctx: WorkerCtx): void {
    const job = state.jobs.byKey.get(key);
    if (job?.offer === undefined || !job.offer.lending) return;
    job.offer.lending = false;
    job.blocks.push(...blocks);
    if (job.phase === 'held') invite(api, job, ctx, pool());
  }

  /** The grant ends, and what was lent with it. */
  function takeBack(job: Job): void {
    job.blocks.length = 0;
    if (job.offer !== undefined) job.offer.lending = false;
  }

  function put(job: Job, ctx: WorkerCtx): void {
    if (job.offer === undefined) return;
    const { key } = job;
    const round = ++job.offer.round;
    const offered = (code: string) => ({ type: 'Offered', key, round, code }) as const;
    ctx.pipe(
      queue.put(jobOf(job, round), headOf(job, ctx.now())),
      takeMs,
      () => offered(''),
      (error) => offered(codeOf(error)),
    );
  }

  const headOf = (job: Job, now: number): Head => ({
    ...api.headOf(job),
    budgetMs: Math.max(1, Math.floor(Math.min(jobMs, job.deadlineAt - now))),
  });

  function offered(
    state: WorkerState,
    { key, round, code }: WorkerMessage & { type: 'Offered' },
    ctx: WorkerCtx,
  ): void {
    const job = state.jobs.byKey.get(key);
    if (code === '' || job?.offer?.round !== round || job.peer !== undefined) return;
    ctx.log.debug('the prefill queue takes no job', { req: job.req, code });
    compute(state, job, ctx);
  }

  /** The prompt is computed here after all: the grant becomes an ordinary request of the engine. */
  function compute(state: WorkerState, job: Job, ctx: WorkerCtx): void {
    ctx.tell(api.gpu, { type: 'CancelKey', key: job.key });
    takeBack(job);
    renameJob(state.jobs, job);
    job.offer = undefined;
    job.phase = 'decoding';
    job.expiresAt = job.deadlineAt;
    ctx.tell(api.gpu, { type: 'Generate', request: api.requestOf(job) });
  }

  /** A prefill worker has a slot for it: it gets the prompt, or hears that nobody wants it any more. */
  function taken(state: WorkerState, message: Envelope<'Taken'>, ctx: WorkerCtx): void {
    const { reply, round, taker } = message.body;
    const job = state.jobs.byRequest.get(requestKey(reply.gateway, reply.num));
    const current = job?.attempt === message.attempt;
    const open = current && job.phase === 'held' ? job.offer : undefined;
    // The same job again: the queue gave it to another one, for the first made no progress.
    if (!current || open === undefined || (job.peer !== undefined && job.peer !== taker && open.taken !== round)) {
      if (!current || job.peer !== taker) release(reply, taker, message, ctx);
      return;
    }
    // Whoever is ill has slots free and takes it again: no reason to wait for it again.
    if (open.lost.has(taker)) {
      release(reply, taker, message, ctx);
      if (job.peer === undefined) compute(state, job, ctx);
      return;
    }
    if (job.peer !== undefined && job.peer !== taker) release(reply, job.peer, message, ctx);
    job.peer = taker;
    open.taken = round;
    job.expiresAt = ctx.now() + config.grantMs;
    ctx.frame(
      job.frontend,
      'TakenBy',
      { num: job.num, leg: config.leg, worker: config.incarnation, taker },
      api.headOf(job),
    );
    if (!open.lending) invite(api, job, ctx, pool());
  }

  /** Nothing can be expected of a taker: the next one is asked for at once. */
  function lost(state: WorkerState, job: Job, ctx: WorkerCtx): void {
    const taker = job.peer;
    if (taker !== undefined) release(replyOf(job), taker, job, ctx);
    job.peer = undefined;
    if (job.offer === undefined) return;
    job.offer.taken = 0;
    if (taker !== undefined) job.offer.lost.add(taker);
    state.requeued++;
    if (job.offer.lost.size >= mostLosses) {
      const body = jobOf(job, job.offer.round);
      queue.bury(body, headOf(job, ctx.now()), `${mostLosses} prefill workers were lost on it`);
      api.fail(state, job, 'WRK_JOB_DEAD', '', ctx);
      return;
    }
    // Its slot is held until somebody comes, or D computes it.
    job.expiresAt = job.deadlineAt;
    if (!job.pulled) {
      offer(state, job, ctx);
      return;
    }
    // A grant takes blocks from one pool only.
    job.pulled = false;
    job.offer.takeBy = ctx.now() + takeMs;
    ctx.tell(api.gpu, { type: 'CancelKey', key: job.key });
    takeBack(job);
    renameJob(state.jobs, job);
    ctx.tell(api.gpu, { type: 'Reserve', request: api.requestOf(job) });
  }

  function takerGone(state: WorkerState, taker: string, ctx: WorkerCtx): void {
    for (const job of [...state.jobs.byKey.values()]) if (isTakenBy(job, taker)) lost(state, job, ctx);
  }

  const isTakenBy = (job: Job, taker: string) => job.offer !== undefined && job.phase === 'held' && job.peer === taker;

  /** P may free what it holds for a request. */
  function release(
    reply: Body<'KvRelease'>['reply'],
    prefill: string,
    of: Parameters<typeof api.headOf>[0],
    ctx: WorkerCtx,
  ) {
    ctx.frame(address('prefill', prefill, 'worker'), 'KvRelease', { reply }, api.headOf(of));
  }

  return {
    begin,
    granted,
    lent,
    release,
    /** True: the message was about the queue. */
    other(state: WorkerState, message: WorkerMessage, ctx: WorkerCtx): boolean {
      switch (message.type) {
        case 'Backlog':
          compared(state, message, ctx);
          return true;
        case 'Offered':
          offered(state, message, ctx);
          return true;
        case 'NothingLent':
          lent(state, message.key, [], ctx);
          return true;
        case 'Taken':
          taken(state, message, ctx);
          return true;
        case 'TakerLost': {
          const { reply, taker } = message.body;
          const job = state.jobs.byRequest.get(requestKey(reply.gateway, reply.num));
          if (job?.attempt === message.attempt && isTakenBy(job, taker)) lost(state, job, ctx);
          return true;
        }
        case 'PeerSeen':
          state.peers.add(message.incarnation);
          return true;
        case 'PeerLeaving':
          state.peers.delete(message.incarnation);
          return true;
        case 'PeerGone':
          state.peers.delete(message.incarnation);
          takerGone(state, message.incarnation, ctx);
          return true;
        case 'BrokerBack':
          // Repeats do no harm: a job that D has no use for is answered so.
          for (const job of state.jobs.byKey.values()) {
            if (job.offer === undefined || job.offer.round === 0 || job.phase !== 'held' || job.peer !== undefined)
              continue;
            job.offer.takeBy = ctx.now() + takeMs;
            put(job, ctx);
          }
          return true;
        case 'PrefillLimits':
          if (state.limits !== undefined) state.limits = message.limits;
          return true;
        default:
          return false;
      }
    },
    /** True: a held job was seen to. */
    tick(state: WorkerState, job: Job, now: number, ctx: WorkerCtx): boolean {
      if (job.offer === undefined || job.phase !== 'held') return false;
      if (job.peer === undefined) {
        if (now >= job.offer.takeBy) compute(state, job, ctx);
        else if (job.offer.round > 0) askBacklog(job, ctx);
      } else if (now >= job.expiresAt) lost(state, job, ctx);
      return true;
    },
    closed(job: Job, ctx: WorkerCtx): void {
      if (job.offer !== undefined && job.phase === 'held' && job.peer !== undefined)
        release(replyOf(job), job.peer, job, ctx);
    },
  };
}

/** D holds its grant: now, and only now, P may compute. D tells it itself, which spares the first token a hop. */
export function invite(api: WorkerApi, job: Job, ctx: WorkerCtx, pool?: PoolRef): void {
  if (job.peer === undefined) return;
  const { fingerprint, kvType, layout } = api.config;
  const prefix = pool !== undefined &&
    job.blocks.length > 0 && { pool, fingerprint, kvType, layout, blocks: job.blocks };
  ctx.command(
    address('prefill', job.peer, 'worker'),
    'Prefill',
    {
      work: job.work,
      reply: { gateway: job.gateway, num: job.num },
      decode: api.config.incarnation,
      haveBlocks: job.haveBlocks,
      ...(prefix && { prefix }),
    },
    { ...api.headOf(job), budgetMs: Math.max(1, Math.floor(job.deadlineAt - ctx.now())) },
    (code) => ({ type: 'Undelivered', key: job.key, code }),
  );
}
