/**
 * The decode worker: grants slots and KV (Reserve), copies and verifies what P offers, takes over from token 2 (PrefillDone), or
 * serves a request all by itself (Generate). Design 5.3 and 6.5.
 */
import { address, finishCodes } from '../../transport/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { Job } from '../worker/jobs.js';
import { requestKey } from '../worker/jobs.js';
import {
  type WorkerConfig,
  type WorkerCtx,
  type WorkerMessage,
  type WorkerState,
  workerActor,
} from '../worker/worker.js';

export function decodeActor(config: WorkerConfig, gpu: Ref<GpuMessage>): Behaviour<WorkerMessage, WorkerState> {
  return workerActor(config, gpu, (api) => {
    /** P may free its blocks: we have our own copy, or want none. */
    function releasePeer(
      of: { gateway: string; num: number },
      peer: string,
      head: Parameters<typeof api.headOf>[0],
      ctx: WorkerCtx,
    ): void {
      ctx.frame(
        address('prefill', peer, 'worker'),
        'KvRelease',
        { reply: { gateway: of.gateway, num: of.num } },
        api.headOf(head),
      );
    }

    return {
      begin(job, command, request) {
        if (command.type === 'Generate') {
          job.phase = 'decoding';
          return { type: 'Generate', request };
        }
        if (command.type !== 'Reserve') return undefined;
        job.phase = 'held';
        job.expiresAt = job.toldAt + config.grantMs;
        return { type: 'Reserve', request };
      },
      granted(job, haveBlocks, ctx) {
        if (job.peer === undefined) return;
        // D holds its grant: now, and only now, P may compute. D tells it itself, which spares the first token a hop.
        ctx.command(
          address('prefill', job.peer, 'worker'),
          'Prefill',
          { work: job.work, reply: { gateway: job.gateway, num: job.num }, decode: config.incarnation, haveBlocks },
          { ...api.headOf(job), budgetMs: Math.max(1, Math.floor(job.deadlineAt - ctx.now())) },
          (code) => ({ type: 'Undelivered', key: job.key, code }),
        );
      },
      other(state, message, ctx) {
        if (message.type === 'KvOffer') {
          const job = api.find(state, message);
          if (job?.phase !== 'held' || job.attempt !== message.attempt) return;
          job.expiresAt = ctx.now() + config.grantMs;
          const { pool, blocks } = message.body;
          if (blocks.length > 0) ctx.tell(api.gpu, { type: 'Pull', key: job.key, pool, blocks });
        } else if (message.type === 'PrefillDone') {
          const { reply, handoff, first, cachedTokens } = message.body;
          const job = state.jobs.byRequest.get(requestKey(reply.gateway, reply.num));
          if (job?.phase !== 'held' || job.attempt !== message.attempt) {
            // The grant is gone, or this is a repeat: P need not wait for its lease. A repeat of what runs already was released.
            if (job?.attempt !== message.attempt) releasePeer(reply, handoff.pool.owner, message, ctx);
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
        for (const key of step.committed) {
          const job = state.jobs.byKey.get(key);
          if (!job) continue;
          job.phase = 'decoding';
          job.expiresAt = job.deadlineAt;
          if (job.peer !== undefined) releasePeer(job, job.peer, job, ctx);
        }
        for (const { key } of step.failed) {
          const job = state.jobs.byKey.get(key);
          if (job?.peer !== undefined && job.phase === 'handing') releasePeer(job, job.peer, job, ctx);
        }
      },
      tick(state, job, now, ctx) {
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
