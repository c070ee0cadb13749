/** Says every 250 ms how a worker is: its load, and the engine's step counter that betrays a wedged engine (design 8.1). */
import type { EngineLimits, EngineLoad } from '../../gpu/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import { beatMs } from '../registry/liveness.js';
import type { WorkerFacts, WorkerMessage } from '../worker/worker.js';

export type BeaconMessage =
  | { readonly type: 'Beat' }
  | { readonly type: 'Load'; readonly load: EngineLoad }
  | { readonly type: 'Jobs'; readonly load: EngineLoad; readonly granted: number }
  | { readonly type: 'Late' };

export function beaconActor(
  incarnation: string,
  limits: EngineLimits,
  gpu: Ref<GpuMessage>,
  worker: Ref<WorkerMessage>,
  rssBytes: () => number,
): Behaviour<BeaconMessage, null> {
  return {
    name: 'beacon',
    start(ctx) {
      ctx.after(0, { type: 'Beat' });
      return null;
    },
    handle(state, message, ctx) {
      if (message.type === 'Beat') {
        ctx.after(beatMs, { type: 'Beat' });
        ctx.ask<GpuMessage, EngineLoad>(
          gpu,
          (replyTo) => ({ type: 'LoadQuery', replyTo }),
          beatMs,
          (load) => ({ type: 'Load', load }),
          () => ({ type: 'Late' }),
        );
      } else if (message.type === 'Load') {
        const { load } = message;
        ctx.ask<WorkerMessage, WorkerFacts>(
          worker,
          (replyTo) => ({ type: 'FactsAsk', replyTo }),
          beatMs,
          ({ granted }) => ({ type: 'Jobs', load, granted }),
          () => ({ type: 'Late' }),
        );
      } else if (message.type === 'Jobs') {
        const { busySlots, waiting, usedKvBlocks, cachedBlocks, steps } = message.load;
        const { slots, kvBlocks } = limits;
        const body = {
          incarnation,
          slots,
          busySlots,
          waiting,
          queued: Math.max(0, busySlots + waiting - message.granted),
          kvBlocks,
          usedKvBlocks,
          cachedBlocks,
          steps,
          rssBytes: rssBytes(),
        };
        ctx.frame(ctx.address, 'Load', body, { req: '', attempt: 0, budgetMs: beatMs });
      }
      return state;
    },
  };
}
