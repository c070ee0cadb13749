/**
 * The prefill worker: computes prompts, samples the first token of each fresh choice and sends it straight to the gateway, and
 * offers finished KV blocks to D while later ones are computed (design 5.3, prefill-first).
 */
import { address, type Body, finishCodes } from '../../transport/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { WorkerConfig, WorkerCtx, WorkerMessage, WorkerState } from '../worker/contract.js';
import type { Job } from '../worker/jobs.js';
import { workerActor } from '../worker/worker.js';
import { type JobSource, noJobs, takes } from './takes.js';

/** D's grant lapses without news from P; an empty offer is news. */
const renewMs = 1_000;
/** The gateway gets this head start with token 1: what wakes D would take the core from it (decision 0011). */
const headStartMs = 1;

/** `pool`: what the engine exports from; read at each offer, for the engine creates it when it starts. */
export function prefillActor(
  config: WorkerConfig,
  gpu: Ref<GpuMessage>,
  pool: () => Body<'KvOffer'>['pool'],
  jobs: JobSource = noJobs,
): Behaviour<WorkerMessage, WorkerState> {
  return workerActor(config, gpu, (api) => {
    const taking = takes(api, jobs);
    const decodeOf = (job: Job) => address('decode', job.peer ?? 'none', 'worker');

    function offer(job: Job, blocks: Body<'KvOffer'>['blocks'], now: number, ctx: WorkerCtx): void {
      job.expiresAt = now + renewMs;
      ctx.frame(
        decodeOf(job),
        'KvOffer',
        { reply: { gateway: job.gateway, num: job.num }, pool: pool(), blocks },
        api.headOf(job),
      );
    }

    function handOver(job: Job, ctx: WorkerCtx): void {
      const first = firstTokens(job);
      if (first.length === job.work.choices.length && first.every(({ finish }) => finish !== finishCodes.none)) {
        // The request ends at token 1: nobody needs the KV. The job stays until the gateway has all tokens.
        ctx.tell(api.gpu, { type: 'ReleaseKey', key: job.key });
        job.phase = 'decoding';
        job.expiresAt = ctx.now() + config.keepMs;
        return;
      }
      job.phase = 'handing';
      job.expiresAt = ctx.now() + config.leaseMs;
      const handoff = {
        pool: pool(),
        fingerprint: config.fingerprint,
        kvType: config.kvType,
        layout: config.layout,
        blockTokens: config.blockTokens,
        promptTokens: job.work.prompt.length,
        firstBlock: job.blocks[0]?.index ?? Math.ceil(job.work.prompt.length / config.blockTokens),
        blocks: job.blocks,
        leaseMs: config.leaseMs,
      };
      ctx.command(
        decodeOf(job),
        'PrefillDone',
        { reply: { gateway: job.gateway, num: job.num }, handoff, first, cachedTokens: job.cachedTokens },
        api.headOf(job),
        (code) => ({ type: 'Undelivered', key: job.key, code }),
      );
    }

    return {
      begin(state, job, command) {
        if (command.type !== 'Prefill') return undefined;
        taking.begin(state, job);
        const request = api.requestOf(job);
        job.phase = 'computing';
        job.expiresAt = job.toldAt + renewMs;
        const { haveBlocks, prefix } = command.body;
        return { type: 'Prefill', request, haveBlocks, leaseMs: config.leaseMs, ...(prefix && { prefix }) };
      },
      other(state, message, ctx) {
        if (message.type === 'HandOver') {
          for (const key of message.keys) {
            const job = state.jobs.byKey.get(key);
            if (job) handOver(job, ctx);
          }
          return;
        }
        if (taking.other(state, message, ctx) || message.type !== 'KvRelease') return;
        const job = api.find(state, message);
        // What came from the queue D may take back at any time.
        if (job?.phase === 'handing' || job?.ticket !== undefined) api.drop(state, job, ctx);
      },
      closed: taking.closed,
      swept: taking.swept,
      stepped(state, step, ctx) {
        const now = ctx.now();
        const finished = step.prefilled.map(({ key }) => key);
        if (step.progress.length > 0) taking.progressed(state);
        for (const { key, blocks } of step.exported) {
          const job = state.jobs.byKey.get(key);
          if (!job) continue;
          job.blocks.push(...blocks);
          // The descriptor of the whole follows at once: it says all that an offer would.
          if (!finished.includes(key)) offer(job, [...blocks], now, ctx);
        }
        for (const { key, cachedTokens } of step.prefilled) {
          const job = state.jobs.byKey.get(key);
          if (job) job.cachedTokens = Math.max(job.cachedTokens, cachedTokens);
        }
        if (finished.length > 0) ctx.after(headStartMs, { type: 'HandOver', keys: finished });
      },
      tick(state, job, now, ctx) {
        if (now < job.expiresAt) return;
        if (job.phase === 'computing') offer(job, [], now, ctx);
        else if (job.phase === 'handing')
          api.fail(state, job, 'GPU_HANDOFF_GONE', 'the decode worker did not fetch the KV in time', ctx);
        else api.drop(state, job, ctx);
      },
    };
  });
}

function firstTokens(job: Job): Body<'PrefillDone'>['first'] {
  const first: Body<'PrefillDone'>['first'] = [];
  for (const [choice, { from, tokens, finish, logprobs }] of job.retained) {
    const token = tokens[0];
    if (from === 0 && token !== undefined) first.push({ choice, token, finish, ...(logprobs && { logprobs }) });
  }
  return first;
}
