/**
 * The GPU actor owns the engine: device, model, KV pools and transfer handles. It is first in its tree: when it ends, everything
 * that used the handles has been stopped before (design 3). Nothing else calls the engine.
 */
import type { Engine, EngineError, EngineLoad, EngineRequest, EngineStep, Verdict } from '../../gpu/index.js';
import type { BlockRef, Handoff, LentPrefix, PoolRef } from '../../transport/index.js';
import type { Behaviour, Ref } from '../kernel/contract.js';

/** What the worker hears from its GPU actor. */
export type GpuNews =
  | { readonly type: 'Verdict'; readonly key: number; readonly verdict: Verdict<{ readonly haveBlocks?: number }> }
  | { readonly type: 'Step'; readonly step: EngineStep }
  | { readonly type: 'NothingLent'; readonly key: number };

export type GpuMessage =
  | { readonly type: 'Attach'; readonly worker: Ref<GpuNews> }
  // Each of these is answered with a Verdict.
  | { readonly type: 'Generate'; readonly request: EngineRequest }
  | {
      readonly type: 'Prefill';
      readonly request: EngineRequest;
      readonly haveBlocks: number;
      readonly leaseMs: number;
      readonly prefix?: LentPrefix;
    }
  | { readonly type: 'Reserve'; readonly request: EngineRequest }
  // These are answered only if they are refused; success shows in the steps.
  | { readonly type: 'Pull'; readonly key: number; readonly pool: PoolRef; readonly blocks: readonly BlockRef[] }
  | { readonly type: 'Commit'; readonly key: number; readonly handoff: Handoff; readonly first: readonly FirstToken[] }
  /** What is lent shows in a step; if nothing can be, NothingLent says so. */
  | { readonly type: 'Lend'; readonly key: number }
  // These cannot fail.
  | { readonly type: 'CancelKey'; readonly key: number }
  | { readonly type: 'ReleaseKey'; readonly key: number }
  | { readonly type: 'LoadQuery'; readonly replyTo: Ref<EngineLoad> }
  // From the engine.
  | { readonly type: 'EngineStepped'; readonly step: EngineStep }
  | { readonly type: 'EngineDied'; readonly error: EngineError };

export interface FirstToken {
  readonly choice: number;
  readonly token: number;
  readonly finished: boolean;
}

export interface GpuState {
  worker: Ref<GpuNews> | undefined;
}

/** `listen` connects the engine's sink to this actor's mailbox; the composition root provides it. */
export function gpuActor(
  engine: Engine,
  listen: (self: Ref<GpuMessage>) => { step(step: EngineStep): void; died(error: EngineError): void },
): Behaviour<GpuMessage, GpuState> {
  return {
    name: 'gpu',
    capacity: 100_000,
    // A lost step would lose tokens.
    overflow: 'crash',
    start(ctx) {
      engine.start(listen(ctx.self));
      return { worker: undefined };
    },
    handle(state, message, ctx) {
      const answer = (key: number, verdict: Verdict<{ haveBlocks?: number }>) => {
        if (state.worker) ctx.tell(state.worker, { type: 'Verdict', key, verdict });
      };
      switch (message.type) {
        case 'EngineStepped':
          if (state.worker) ctx.tell(state.worker, { type: 'Step', step: message.step });
          break;
        case 'Attach':
          state.worker = message.worker;
          break;
        case 'Generate':
          answer(message.request.key, engine.generate(message.request));
          break;
        case 'Prefill':
          answer(
            message.request.key,
            engine.prefill(message.request, message.haveBlocks, message.leaseMs, message.prefix),
          );
          break;
        case 'Reserve':
          answer(message.request.key, engine.reserve(message.request));
          break;
        case 'Pull': {
          const verdict = engine.pull(message.key, message.pool, message.blocks);
          if (!verdict.ok) answer(message.key, verdict);
          break;
        }
        case 'Commit': {
          const verdict = engine.commit(message.key, message.handoff, message.first);
          if (!verdict.ok) answer(message.key, verdict);
          break;
        }
        case 'Lend':
          if (!engine.lend(message.key).ok && state.worker) {
            ctx.tell(state.worker, { type: 'NothingLent', key: message.key });
          }
          break;
        case 'CancelKey':
          engine.cancel(message.key);
          break;
        case 'ReleaseKey':
          engine.release(message.key);
          break;
        case 'LoadQuery':
          ctx.tell(message.replyTo, engine.load());
          break;
        case 'EngineDied':
          // The process cannot serve without its engine: end, and let the supervisor start a new one.
          throw new Error(`engine ended: ${message.error.code} ${message.error.message}`);
      }
      return state;
    },
  };
}
