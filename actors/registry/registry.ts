/**
 * A gateway's view of the fleet: follows the registry's leases, hears of deaths at once (Down), and tells the router whom it may
 * choose and the frontend whom it has lost. Discovery only; judging who is slow or silent comes with failure detection.
 */
import type { Envelope, InstanceInfo } from '../../transport/index.js';
import type { FrontendMessage } from '../frontend/frontend.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { RouterMessage } from '../router/router.js';

export type RegistryMessage =
  | { readonly type: 'Seen'; readonly info: InstanceInfo }
  /** The lease ran out or was given back. */
  | { readonly type: 'LeaseEnded'; readonly incarnation: string }
  | Envelope<'Load' | 'Down'>;

export interface RegistryState {
  readonly live: Map<string, InstanceInfo>;
  /** Declared dead while their lease still runs: an entry that is seen again is a ghost. */
  readonly dead: Set<string>;
}

/** Ghosts are gone from the bucket within a lease; this many deaths in one lease is a fleet on fire. */
const deadLimit = 4_096;

export function registryActor(
  router: Ref<RouterMessage>,
  frontend: Ref<FrontendMessage>,
  /** Called with every change: the models that can be served now. */
  modelsChanged: (live: readonly InstanceInfo[]) => void,
): Behaviour<RegistryMessage, RegistryState> {
  return {
    name: 'registry',
    capacity: 100_000,
    start: () => ({ live: new Map(), dead: new Set() }),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Seen': {
          const { info } = message;
          if (state.dead.has(info.incarnation)) break;
          state.live.set(info.incarnation, info);
          if (info.component !== 'gateway') ctx.tell(router, { type: 'InstanceUp', info });
          modelsChanged([...state.live.values()]);
          break;
        }
        case 'LeaseEnded':
          state.dead.delete(message.incarnation);
          gone(message.incarnation, 'lease ended');
          break;
        case 'Down':
          state.dead.add(message.body.incarnation);
          if (state.dead.size > deadLimit) state.dead.delete(state.dead.values().next().value as string);
          gone(message.body.incarnation, message.body.reason);
          break;
        case 'Load': {
          const { incarnation, busySlots, waiting } = message.body;
          ctx.tell(router, { type: 'Load', incarnation, busySlots, waiting });
          break;
        }
      }
      return state;

      function gone(incarnation: string, reason: string): void {
        const info = state.live.get(incarnation);
        if (!info) return;
        state.live.delete(incarnation);
        ctx.log.info('instance gone', { instance: info.instance, incarnation, reason });
        if (info.component !== 'gateway') {
          ctx.tell(router, { type: 'InstanceGone', incarnation });
          ctx.tell(frontend, { type: 'WorkerGone', incarnation, reason });
        }
        modelsChanged([...state.live.values()]);
      }
    },
  };
}
