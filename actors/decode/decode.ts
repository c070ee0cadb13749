/**
 * The decode worker: grants slots and KV (Reserve), copies and verifies what P offers, takes over from token 2 (PrefillDone), or
 * serves a request all by itself (Generate). Design 5.3 and 6.5.
 */
import { finishCodes, type PoolRef } from '../../transport/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { WorkerConfig, WorkerMessage, WorkerState } from '../worker/contract.js';
import { type Job, requestKey } from '../worker/jobs.js';
import { workerActor } from '../worker/worker.js';
import { invite, offers, type PrefillQueue } from './offers.js';

/** `pool`: what the engine lends from; undefined: it lends nothing. */
export function decodeActor(
  config: WorkerConfig,
  gpu: Ref<GpuMessage>,
  queue: PrefillQueue = noQueue,
  pool: () => PoolRef | undefined = () => undefined,
): Behaviour<WorkerMessage, WorkerState> {
  return workerActor(config, gpu, (api) => {
    const queued = offers(api, queue, pool);
    /** P may free its blocks: we have our own copy, or want none. */
    const releasePeer = queued.release;
    const replyOf = ({ gateway, num }: Job) => ({ gateway, num });

    return {
      begin(state, job, command) {
        const left = queued.begin(state, job, command);
        if (left !== undefined) return left;
        const request = api.requestOf(job);
        if (command.type === 'Generate') {
          job.phase = 'decoding';
          return { type: 'Generate', request };
        }
        if (command.type !== 'Reserve') return undefined;
        job.phase = 'held';
        job.expiresAt = job.toldAt + config.grantMs;
        return { type: 'Reserve', request };
      },
      granted(state, job, ctx) {
        if (job.phase !== 'held') return;
        if (job.offer === undefined) invite(api, job, ctx);
        else queued.granted(state, job, ctx);
      },
      other(state, message, ctx) {
        if (queued.other(state, message, ctx)) return;
        if (message.type === 'KvOffer') {
          const job = api.find(state, message);
          const { pool, blocks } = message.body;
          // A taker that was given up may be back; what it offers is no news of the one that is awaited.
          if (job?.phase !== 'held' || job.attempt !== message.attempt || job.peer !== pool.owner) return;
          job.expiresAt = ctx.now() + config.grantMs;
          if (blocks.length === 0) return;
          job.pulled = true;
          ctx.tell(api.gpu, { type: 'Pull', key: job.key, pool, blocks });
        } else if (message.type === 'PrefillDone') {
          const { reply, handoff, first, cachedTokens } = message.body;
          const job = state.jobs.byRequest.get(requestKey(reply.gateway, reply.num));
          const { owner } = handoff.pool;
          const awaited = job?.attempt === message.attempt && job.peer === owner;
          if (job?.phase !== 'held' || !awaited) {
            // The grant is gone, or this is a repeat: P need not wait for its lease. A repeat of what runs already was released.
            if (!awaited) releasePeer(reply, owner, message, ctx);
            return;
          }
          job.phase = 'handing';
          job.cachedTokens = cachedTokens;
          // P forgets the request with its release: from here on D repeats token 1 too.
          for (const { choice, token, finish, logprobs } of first) {
            job.retained.set(choice, {
              from: 0,
              tokens: [token],
              logprobs: logprobs && [...logprobs],
              finish,
              item: undefined,
              round: 0,
            });
          }
          const known = first.map(({ choice, token, finish }) => ({
            choice,
            token,
            finished: finish !== finishCodes.none,
          }));
          job.expiresAt = ctx.now() + handoff.leaseMs;
          ctx.tell(api.gpu, { type: 'Commit', key: job.key, handoff, first: known });
        }
      },
      stepped(state, step, ctx) {
        for (const { key, blocks } of step.exported) queued.lent(state, key, blocks, ctx);
        for (const key of step.committed) {
          const job = state.jobs.byKey.get(key);
          if (!job) continue;
          job.phase = 'decoding';
          job.expiresAt = job.deadlineAt;
          if (job.peer !== undefined) releasePeer(replyOf(job), job.peer, job, ctx);
        }
        for (const { key } of step.failed) {
          const job = state.jobs.byKey.get(key);
          if (job?.peer !== undefined && job.phase === 'handing') releasePeer(replyOf(job), job.peer, job, ctx);
        }
      },
      closed(_state, job, ctx) {
        queued.closed(job, ctx);
      },
      tick(state, job, now, ctx) {
        if (queued.tick(state, job, now, ctx)) return;
        if (now < job.expiresAt) {
          keepFinished(job, now);
          return;
        }
        if (job.phase === 'held') api.fail(state, job, 'WRK_GRANT_LAPSED', 'no news from the prefill worker', ctx);
        else if (job.phase === 'handing')
          api.fail(state, job, 'GPU_HANDOFF_GONE', 'the hand-off took longer than its lease', ctx);
        else api.drop(state, job, ctx);
      },
    };

    /** All tokens are out: keep them for a Resync, but not for ever. */
    function keepFinished(job: Job, now: number): void {
      if (job.phase !== 'decoding' || job.expiresAt < job.deadlineAt || job.retained.size < job.work.choices.length)
        return;
      for (const kept of job.retained.values()) if (kept.finish === 0) return;
      job.expiresAt = Math.min(job.deadlineAt, now + config.keepMs);
    }
  });
}

/** Prefill-first: the router brings prompts to prefill workers. */
const noQueue: PrefillQueue = {
  put: () => Promise.reject(new Error('there is no prefill queue')),
  backlog: () => Promise.reject(new Error('there is no prefill queue')),
  bury: () => {},
};
