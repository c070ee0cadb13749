/**
 * A gateway's view of the fleet: follows the registry's leases, hears of deaths at once (Down), and judges who is silent or stands
 * still (design 8.1). It tells the router whom it may choose, and through it the frontend whom it has lost.
 */
import { type Envelope, type InstanceInfo, parts } from '../../transport/index.js';
import type { FrontendMessage } from '../frontend/state.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import type { RouterMessage } from '../router/messages.js';
import { beatMs, createLiveness, idleBeatMs, type Liveness, type LivenessLimits, type Suspicion } from './liveness.js';

export type RegistryMessage =
  | { readonly type: 'Seen'; readonly info: InstanceInfo }
  /** The lease ran out or was given back. */
  | { readonly type: 'LeaseEnded'; readonly incarnation: string }
  | Envelope<'Load' | 'Down'>
  | { readonly type: 'Look' }
  /** Workers that sent a frame since the last look; it comes after all that waited in the frontend's mailbox. */
  | { readonly type: 'Heard'; readonly workers: readonly string[] }
  | { readonly type: 'NotTold' };

export interface RegistryState {
  readonly live: Map<string, InstanceInfo>;
  /** Declared dead while their lease still runs: an entry that is seen again is a ghost. */
  readonly dead: Set<string>;
  readonly liveness: Liveness;
  /** Between the last look and the next. */
  lookMs: number;
}

/** Ghosts are gone from the bucket within a lease; this many deaths in one lease is a fleet on fire. */
const deadLimit = 4_096;
/** A frontend that needs longer has not read what workers sent: no ground to judge on. */
const patienceMs = 4 * beatMs;

export function registryActor(
  router: Ref<RouterMessage>,
  frontend: Ref<FrontendMessage>,
  limits: LivenessLimits,
  /** Called with every change: the models that can be served now. */
  modelsChanged: (live: readonly InstanceInfo[]) => void,
): Behaviour<RegistryMessage, RegistryState> {
  type C = Ctx<RegistryMessage>;

  function load(state: RegistryState, { incarnation, ...body }: Envelope<'Load'>['body'], ctx: C): void {
    if (incarnation === parts(ctx.address).incarnation) {
      state.liveness.echo();
      return;
    }
    const { busySlots, waiting, usedKvBlocks, steps, queued, everyMs } = body;
    ctx.tell(router, { type: 'Load', incarnation, busySlots, waiting, usedKvBlocks });
    const news = state.liveness.beat({ incarnation, steps, queued, everyMs });
    if (news === 'cleared') cleared(incarnation, ctx);
    else if (news !== undefined) suspect(incarnation, news, ctx);
  }

  function look(ctx: C): void {
    // What comes back of it, and when, tells how the broker is: silence is nobody's fault while it is late.
    const { incarnation } = parts(ctx.address);
    ctx.frame(ctx.address, 'Load', { ...idle, incarnation }, { req: '', attempt: 0, budgetMs: beatMs });
    ctx.ask<FrontendMessage, { readonly workers: readonly string[] }>(
      frontend,
      (replyTo) => ({ type: 'HeardFrom', replyTo }),
      patienceMs,
      ({ workers }) => ({ type: 'Heard', workers }),
      () => ({ type: 'NotTold' }),
    );
  }

  function suspect(incarnation: string, code: Suspicion, ctx: C): void {
    ctx.log.warn('worker suspected', { worker: incarnation, code });
    ctx.tell(router, { type: 'Suspect', incarnation, code, frontend });
  }

  function cleared(incarnation: string, ctx: C): void {
    ctx.log.info('worker is back', { worker: incarnation });
    ctx.tell(router, { type: 'Cleared', incarnation });
  }

  function gone(state: RegistryState, incarnation: string, reason: string, ctx: C): void {
    const info = state.live.get(incarnation);
    if (!info) return;
    state.live.delete(incarnation);
    state.liveness.forget(incarnation);
    ctx.log.info('instance gone', { instance: info.instance, incarnation, reason });
    if (info.component !== 'gateway') ctx.tell(router, { type: 'InstanceGone', incarnation, reason, frontend });
    modelsChanged([...state.live.values()]);
  }

  return {
    name: 'registry',
    capacity: 100_000,
    start(ctx) {
      ctx.after(beatMs, { type: 'Look' });
      return { live: new Map(), dead: new Set(), liveness: createLiveness(limits), lookMs: beatMs };
    },
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Seen': {
          const { info } = message;
          if (state.dead.has(info.incarnation)) break;
          state.live.set(info.incarnation, info);
          const { component } = info;
          if (component !== 'gateway') {
            ctx.tell(frontend, { type: 'WorkerUp', incarnation: info.incarnation, component });
            ctx.tell(router, { type: 'InstanceUp', info });
            // A mock engine's steps are as short as it is told; a real one may compute for seconds.
            state.liveness.add(info.incarnation, info.engine === 'mock' ? limits.silentMs : limits.stuckMs);
          }
          modelsChanged([...state.live.values()]);
          break;
        }
        case 'LeaseEnded':
          state.dead.delete(message.incarnation);
          gone(state, message.incarnation, 'lease ended', ctx);
          break;
        case 'Down':
          state.dead.add(message.body.incarnation);
          if (state.dead.size > deadLimit) state.dead.delete(state.dead.values().next().value as string);
          gone(state, message.body.incarnation, message.body.reason, ctx);
          break;
        case 'Load':
          load(state, message.body, ctx);
          break;
        case 'Look':
          look(ctx);
          break;
        case 'Heard':
          for (const worker of message.workers) if (state.liveness.heard(worker)) cleared(worker, ctx);
          for (const worker of state.liveness.look(state.lookMs)) suspect(worker, 'WORKER_SILENT', ctx);
          state.lookMs = message.workers.length === 0 && state.liveness.idle ? idleBeatMs : beatMs;
          ctx.after(state.lookMs, { type: 'Look' });
          break;
        case 'NotTold':
          state.lookMs = beatMs;
          ctx.after(beatMs, { type: 'Look' });
          break;
      }
      return state;
    },
    /** A defect met by one worker's news leaves the others in view; that one ages into silence. Whatever is of all ends the process. */
    about: (message) =>
      message.type === 'Seen'
        ? message.info.incarnation
        : message.type === 'LeaseEnded'
          ? message.incarnation
          : message.type === 'Load' || message.type === 'Down'
            ? message.body.incarnation
            : '',
    contain: () => 'drop',
  };
}

/** A gateway computes nothing: its beat is only to be heard. */
const idle = {
  slots: 0,
  busySlots: 0,
  waiting: 0,
  queued: 0,
  kvBlocks: 0,
  usedKvBlocks: 0,
  cachedBlocks: 0,
  steps: 0,
  rssBytes: 0,
  jobs: 0,
  leaked: 0,
  everyMs: beatMs,
};
