/**
 * What prefill and decode workers have in common: admission, cancellation, expiry, repetition and draining. The two roles
 * differ in what they do with a command and a step; each gives a `Role`.
 */
import type { EngineRequest } from '../../gpu/index.js';
import type { ReplyTo } from '../../transport/index.js';
import type { GpuMessage, GpuNews } from '../gpu/gpu.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { Role, WorkerApi, WorkerConfig, WorkerCtx, WorkerMessage, WorkerState } from './contract.js';
import { gather, newOutgoing, repeatFrom } from './frames.js';
import {
  bury,
  closeJob,
  frontendOf,
  isBuried,
  type Job,
  type JobCommand,
  newJobs,
  openJob,
  requestKey,
  sweepTombstones,
} from './jobs.js';

const sweepMs = 500;
/** Steps that follow each other faster leave in one frame: each costs its receivers more than the tokens in it. */
const frameGapMs = 1;
/** How often a message is handled again after a throw. */
const retries = 2;

export function workerActor(
  config: WorkerConfig,
  gpu: Ref<GpuMessage>,
  role: (api: WorkerApi) => Role,
): Behaviour<WorkerMessage, WorkerState> {
  const api = workerApi(config, gpu, (state, job, ctx) => close(state, job, ctx));
  const mine = role(api);

  function close(state: WorkerState, job: Job, ctx: WorkerCtx): void {
    closeJob(state.jobs, job);
    mine.closed(state, job, ctx);
    whenIdle(state, ctx);
  }

  function command(state: WorkerState, message: JobCommand, ctx: WorkerCtx): void {
    const { reply, work } = message.body;
    const key = requestKey(reply.gateway, reply.num);
    if (isBuried(state.jobs, key, message.attempt)) return;
    const known = state.jobs.byRequest.get(key);
    if (known && known.attempt >= message.attempt) {
      // A repeat: the answer may have been lost, the work has not.
      if (known.attempt === message.attempt && known.accepted) api.accept(known, ctx);
      return;
    }
    if (known) api.drop(state, known, ctx);
    const refuse = (code: string, text: string) => {
      state.refused++;
      ctx.frame(
        frontendOf(reply.gateway),
        'Refused',
        { num: reply.num, leg: config.leg, worker: config.incarnation, code, message: text },
        api.headOf(message),
      );
    };
    // What it has taken itself it sees through.
    if (state.idle && !state.takes.has(key)) refuse('WRK_DRAINING', '');
    else if (work.model !== config.model) refuse('WRK_WRONG_MODEL', `serves ${config.model}`);
    else if (state.jobs.byKey.size >= config.maxJobs) refuse('WRK_TOO_MANY', '');
    else if (!begin(state, message, ctx)) refuse('WRK_MALFORMED', `a ${config.leg} worker takes no ${message.type}`);
  }

  /** Opens a job and asks the engine; false if this role takes no such command. */
  function begin(state: WorkerState, message: JobCommand, ctx: WorkerCtx): boolean {
    const peer =
      message.type === 'Reserve' ? message.body.prefill : message.type === 'Prefill' ? message.body.decode : undefined;
    const job = openJob(state.jobs, message, peer, ctx.now());
    if (job.trace !== undefined) job.span = config.span?.(config.leg, job.trace);
    const order = mine.begin(state, job, message);
    if (order) ctx.tell(gpu, order);
    else close(state, job, ctx);
    return order !== undefined;
  }

  function verdict(state: WorkerState, message: GpuNews & { type: 'Verdict' }, ctx: WorkerCtx): void {
    const job = state.jobs.byKey.get(message.key);
    if (!job) return;
    if (message.verdict.ok) {
      // A second time when the engine was asked for something else.
      if (!job.accepted) state.accepted++;
      job.accepted = true;
      job.haveBlocks = message.verdict.haveBlocks ?? 0;
      mine.granted?.(state, job, ctx);
    } else if (job.accepted) api.fail(state, job, message.verdict.code, message.verdict.message, ctx);
    else {
      state.refused++;
      const { code, message: text } = message.verdict;
      ctx.frame(
        job.frontend,
        'Refused',
        { num: job.num, leg: config.leg, worker: config.incarnation, code, message: text },
        api.headOf(job),
      );
      close(state, job, ctx);
    }
  }

  function step(state: WorkerState, { step: news }: GpuNews & { type: 'Step' }, ctx: WorkerCtx): void {
    for (const [key, , , cached] of news.progress) {
      const job = state.jobs.byKey.get(key);
      if (job) job.cachedTokens = Math.max(job.cachedTokens, cached);
    }
    const now = ctx.now();
    gather(state.jobs, news.tokens, state.out);
    const wait = state.framedAt + frameGapMs - now;
    // Token 1 never waits, and tokens are told before a failure that follows them.
    if (wait <= 0 || config.leg === 'prefill' || news.failed.length > 0) sendFrames(state, now, ctx);
    else if (!state.holding && state.out.items.size > 0) {
      state.holding = true;
      ctx.after(wait, { type: 'Frames' });
    }
    for (const [key, done, total] of news.progress) {
      const job = state.jobs.byKey.get(key);
      if (job && now - job.toldAt >= sweepMs) {
        job.toldAt = now;
        ctx.frame(
          job.frontend,
          'Progress',
          { num: job.num, leg: config.leg, worker: config.incarnation, done, total },
          api.headOf(job),
        );
      }
    }
    mine.stepped(state, news, ctx);
    for (const { key, code, message } of news.failed) {
      const job = state.jobs.byKey.get(key);
      if (job) api.fail(state, job, code, message, ctx);
    }
  }

  function sendFrames(state: WorkerState, now: number, ctx: WorkerCtx): void {
    if (state.out.items.size === 0) return;
    for (const [gateway, items] of state.out.items) {
      const seq = (state.frameSeq.get(gateway) ?? 0) + 1;
      state.frameSeq.set(gateway, seq);
      ctx.step(gateway, { worker: config.incarnation, seq, items });
    }
    state.out.items.clear();
    state.out.round++;
    state.framedAt = now;
  }

  function sweep(state: WorkerState, ctx: WorkerCtx): void {
    ctx.after(sweepMs, { type: 'Sweep' });
    const now = ctx.now();
    for (const job of [...state.jobs.byKey.values()]) {
      // Whatever keeps a job alive, nobody waits for it any more: its Cancel may have been lost.
      if (now >= job.deadlineAt) api.drop(state, job, ctx);
      else {
        if (job.accepted && !job.told) api.accept(job, ctx);
        mine.tick(state, job, now, ctx);
      }
    }
    sweepTombstones(state.jobs, now);
    mine.swept?.(state, now, ctx);
    whenIdle(state, ctx);
  }

  /**
   * Whatever handling a message of a request broke, is of that request: without its job the state is whole. A command that opens a job is
   * handled again, others have lost what they were about, and the next attempt takes their place.
   */
  function contain(state: WorkerState, message: WorkerMessage, failures: number, ctx: WorkerCtx) {
    if (!('body' in message) || !('req' in message)) return 'crash';
    const { reply } = message.body as { readonly reply: ReplyTo };
    const key = requestKey(reply.gateway, reply.num);
    const job = state.jobs.byRequest.get(key);
    if (job !== undefined) api.drop(state, job, ctx);
    const opens = message.type === 'Reserve' || message.type === 'Prefill' || message.type === 'Generate';
    if (opens && failures <= retries) return 'retry';
    bury(state.jobs, key, message.attempt, ctx.now());
    const code = opens || message.attempt > retries ? 'WRK_POISON' : 'WRK_FAILED';
    const body = { num: reply.num, leg: config.leg, worker: config.incarnation, code, message: '' };
    ctx.frame(frontendOf(reply.gateway), 'Failed', body, api.headOf(message));
    return 'drop';
  }

  function whenIdle(state: WorkerState, ctx: WorkerCtx): void {
    if (state.idle && state.jobs.byKey.size + state.takes.size === 0) ctx.tell(state.idle, { type: 'Idle' });
  }

  return {
    name: 'worker',
    capacity: 100_000,
    overflow: 'crash',
    start(ctx) {
      ctx.tell(gpu, { type: 'Attach', worker: ctx.self });
      ctx.after(sweepMs, { type: 'Sweep' });
      const state: WorkerState = {
        jobs: newJobs(),
        peers: new Set(),
        takes: new Map(),
        limits: config.remotePrefill,
        offered: 0,
        requeued: 0,
        frameSeq: new Map(),
        out: newOutgoing(),
        framedAt: Number.NEGATIVE_INFINITY,
        holding: false,
        idle: undefined,
        accepted: 0,
        refused: 0,
      };
      mine.swept?.(state, ctx.now(), ctx);
      return state;
    },
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Step':
          step(state, message, ctx);
          break;
        case 'Reserve':
        case 'Prefill':
        case 'Generate':
          command(state, message, ctx);
          break;
        case 'Verdict':
          verdict(state, message, ctx);
          break;
        case 'Cancel': {
          const { reply } = message.body;
          bury(state.jobs, requestKey(reply.gateway, reply.num), message.attempt, ctx.now());
          const job = api.find(state, message);
          if (!job) break;
          job.outcome = 'cancelled';
          api.drop(state, job, ctx);
          break;
        }
        case 'Ended': {
          const job = api.find(state, message);
          if (job) api.drop(state, job, ctx);
          break;
        }
        case 'GatewayGone':
          for (const job of [...state.jobs.byKey.values()]) {
            if (job.gateway === message.incarnation) api.drop(state, job, ctx);
          }
          // Also what is held back, which would count frames to it anew.
          state.out.items.delete(message.incarnation);
          state.frameSeq.delete(message.incarnation);
          break;
        case 'ResyncAsk': {
          const { reply, attempt, positions } = message.body;
          const job = state.jobs.byRequest.get(requestKey(reply.gateway, reply.num));
          const known = job?.attempt === attempt;
          ctx.tell(message.replyTo, { known, items: known ? repeatFrom(job, positions) : [] });
          break;
        }
        case 'Undelivered': {
          const job = state.jobs.byKey.get(message.key);
          if (job) api.fail(state, job, message.code, '', ctx);
          break;
        }
        case 'Drain':
          state.idle = message.idle;
          mine.swept?.(state, ctx.now(), ctx);
          whenIdle(state, ctx);
          break;
        case 'Frames':
          state.holding = false;
          sendFrames(state, ctx.now(), ctx);
          break;
        case 'Sweep':
          sweep(state, ctx);
          break;
        case 'FactsAsk': {
          const jobs = state.jobs.byKey.size;
          let granted = 0;
          let running = 0;
          for (const { phase, work, accepted } of state.jobs.byKey.values()) {
            if (phase === 'held') granted += work.choices.length;
            if (accepted) running++;
          }
          const { accepted, refused } = state;
          const { ended } = state.jobs;
          ctx.tell(message.replyTo, {
            jobs,
            granted,
            accepted,
            refused,
            ended,
            leaked: accepted - ended - running,
            offered: state.offered,
            requeued: state.requeued,
          });
          break;
        }
        default:
          mine.other(state, message, ctx);
      }
      return state;
    },
    contain: (state, message, failures, _error, ctx) => contain(state, message, failures, ctx),
  };
}

function workerApi(
  config: WorkerConfig,
  gpu: Ref<GpuMessage>,
  close: (state: WorkerState, job: Job, ctx: WorkerCtx) => void,
): WorkerApi {
  const headOf: WorkerApi['headOf'] = ({ req, attempt, trace }) => ({
    req,
    attempt,
    budgetMs: config.keepMs,
    ...(trace === undefined ? {} : { trace }),
  });
  const drop: WorkerApi['drop'] = (state, job, ctx) => {
    ctx.tell(gpu, { type: 'CancelKey', key: job.key });
    ctx.tell(gpu, { type: 'ReleaseKey', key: job.key });
    close(state, job, ctx);
  };
  return {
    config,
    gpu,
    requestOf: engineRequest,
    headOf,
    find(state, message) {
      const { gateway, num } = message.body.reply;
      const job = state.jobs.byRequest.get(requestKey(gateway, num));
      return job && job.attempt <= message.attempt ? job : undefined;
    },
    accept(job, ctx) {
      job.told = true;
      ctx.frame(
        job.frontend,
        'Accepted',
        { num: job.num, leg: config.leg, worker: config.incarnation, haveBlocks: job.haveBlocks },
        headOf(job),
      );
    },
    fail(state, job, code, message, ctx) {
      job.outcome = 'failed';
      ctx.frame(
        job.frontend,
        'Failed',
        { num: job.num, leg: config.leg, worker: config.incarnation, code, message: message.slice(0, 2000) },
        headOf(job),
      );
      drop(state, job, ctx);
    },
    drop,
  };
}

function engineRequest(job: Job): EngineRequest {
  const { prompt, choices, sampling, maxTokens, minTokens, ignoreEos, logprobs, cacheSalt } = job.work;
  return { key: job.key, prompt, choices, sampling, maxTokens, minTokens, ignoreEos, logprobs, cacheSalt };
}
