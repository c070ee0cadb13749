/** Says every 250 ms, or every second while it has nothing to do, how a worker is: its load, and the engine's step counter that betrays a wedged engine (design 8.1). */
import type { EngineLimits, EngineLoad } from '../../gpu/index.js';
import type { GpuMessage } from '../gpu/gpu.js';
import type { Behaviour, Ref, TimerId } from '../kernel/contract.js';
import { beatMs, idleBeatMs } from '../registry/liveness.js';
import type { WorkerFacts, WorkerMessage } from '../worker/contract.js';

export type BeaconMessage =
  | { readonly type: 'Beat' }
  | { readonly type: 'Load'; readonly load: EngineLoad }
  | { readonly type: 'Jobs'; readonly load: EngineLoad; readonly facts: WorkerFacts }
  | { readonly type: 'Late' };

export interface BeaconState {
  /** Slots and blocks that were held at the last beat while the worker had no job. */
  unowned: number;
  /** Beats in a row without anything to do. */
  quiet: number;
  /** The beat to come. */
  next: TimerId | undefined;
}

/** After so many it beats slowly: between two requests of a conversation it stays awake. */
const quietBeats = 8;

export function beaconActor(
  incarnation: string,
  limits: EngineLimits,
  gpu: Ref<GpuMessage>,
  worker: Ref<WorkerMessage>,
  rssBytes: () => number,
): Behaviour<BeaconMessage, BeaconState> {
  return {
    name: 'beacon',
    start(ctx) {
      ctx.after(0, { type: 'Beat' });
      return { unowned: 0, quiet: 0, next: undefined };
    },
    handle(state, message, ctx) {
      if (message.type === 'Beat') {
        state.next = ctx.after(everyMs(state), { type: 'Beat' });
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
          (facts) => ({ type: 'Jobs', load, facts }),
          () => ({ type: 'Late' }),
        );
      } else if (message.type === 'Jobs') {
        const { busySlots, waiting, usedKvBlocks, cachedBlocks, exportedBlocks, progress } = message.load;
        const { jobs, granted, leaked } = message.facts;
        const unowned = jobs === 0 ? busySlots + waiting + exportedBlocks : 0;
        const { slots, kvBlocks } = limits;
        const dozing = everyMs(state) > beatMs;
        state.quiet = jobs + busySlots + waiting === 0 ? state.quiet + 1 : 0;
        if (dozing && state.quiet === 0) {
          if (state.next !== undefined) ctx.cancelTimer(state.next);
          state.next = ctx.after(beatMs, { type: 'Beat' });
        }
        const body = {
          incarnation,
          slots,
          busySlots,
          waiting,
          queued: Math.max(0, busySlots + waiting - granted),
          kvBlocks,
          usedKvBlocks,
          cachedBlocks,
          steps: progress,
          rssBytes: rssBytes(),
          jobs,
          // The two looks are not at one moment: what is unowned in two beats running is.
          leaked: Math.abs(leaked) + Math.min(unowned, state.unowned),
          everyMs: everyMs(state),
        };
        state.unowned = unowned;
        ctx.frame(ctx.address, 'Load', body, { req: '', attempt: 0, budgetMs: beatMs });
      }
      return state;
    },
  };
}

const everyMs = ({ quiet }: BeaconState): number => (quiet > quietBeats ? idleBeatMs : beatMs);
