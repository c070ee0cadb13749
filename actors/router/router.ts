/**
 * The router: picks P and D together for each request, counts its own dispatches at once (load reports come later), and
 * holds what cannot be placed yet in a bounded queue, where it occupies nothing (design 5.3). It knows what the workers' caches hold,
 * and remembers why it decided as it did.
 */
import type { InstanceInfo } from '../../transport/index.js';
import type { Behaviour } from '../kernel/contract.js';
import type { Outcome } from './choose.js';
import type { RouterMessage } from './messages.js';
import { began, failedElsewhere, freePrefill, grown, inhibit, learn, markFull, release } from './outcomes.js';
import { drain, route, seek, viable } from './placing.js';
import { replicaNews, tellSoon } from './replica-sync.js';
import { factsOf, newState, type RouterConfig, type RouterState } from './state.js';
import { routerTuning } from './tuning.js';

const nowhere: Outcome = { choice: undefined, decisions: [], shortOf: undefined };

export function routerActor(config: RouterConfig): Behaviour<RouterMessage, RouterState> {
  return {
    name: 'router',
    capacity: 100_000,
    start: () => newState(config),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Route':
          route(state, message, config, ctx);
          tellSoon(state.replicas, ctx);
          return state;
        case 'Release':
          state.queue.drop(message.num, message.attempt);
          if (!state.queue.has(message.num)) state.replicas.voice.waitsNot(message.num);
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, message.end, ctx);
          release(state, config.gateway, message.num);
          markFull(state, message.end);
          break;
        case 'FirstToken':
          began(state, config, message, ctx);
          tellSoon(state.replicas, ctx);
          return state;
        case 'Grown':
          grown(state, config.gateway, message.requests);
          return state;
        case 'PrefillDone':
          if (state.placed.get(message.num)?.attempt !== message.attempt) return state;
          learn(state, message.num, 'served', ctx);
          freePrefill(state, config.gateway, message.num);
          break;
        case 'InstanceUp': {
          const { incarnation } = message.info;
          const known = state.workers.get(incarnation);
          const misfit = isMisfit(message.info, config);
          state.workers.set(incarnation, {
            reported: 0,
            reportedBlocks: 0,
            full: false,
            ...known,
            info: message.info,
            suspect: misfit ? 'WRONG_CARD' : known?.suspect,
          });
          if (misfit && known === undefined) {
            const { blockTokens } = message.info;
            ctx.log.error('a worker with KV blocks of another size gets no requests', {
              worker: incarnation,
              blockTokens,
            });
          }
          break;
        }
        case 'InstanceGone': {
          const { incarnation, reason, frontend } = message;
          state.workers.delete(incarnation);
          state.inhibitions.forget(incarnation);
          state.caches?.forget(incarnation);
          state.sessions?.workerGone(incarnation);
          state.drifted.delete(incarnation);
          ctx.tell(frontend, { type: 'WorkerGone', incarnation, reason });
          break;
        }
        case 'KvChange':
          // Also of a worker that is out of view for a moment: what was missed would be believed when it comes back.
          state.caches?.change(message.incarnation, message.rank, message.ops);
          return state;
        case 'Explain':
          ctx.tell(message.replyTo, { records: state.log.find(message.id) });
          return state;
        case 'DryRun': {
          const { request, replyTo } = message;
          const asked = viable(state, request, config);
          ctx.tell(
            replyTo,
            typeof asked === 'string' ? { ...nowhere, refusal: asked } : seek(state, asked, config, ctx),
          );
          return state;
        }
        case 'Tune':
          state.tuning = routerTuning({ ...state.tuning, ...message.tuning });
          break;
        case 'Suspect': {
          const { incarnation, code, frontend } = message;
          const worker = state.workers.get(incarnation);
          if (worker !== undefined && !isMisfit(worker.info, config)) {
            worker.suspect = code;
            inhibit(state, incarnation, code, Number.POSITIVE_INFINITY, ctx);
          }
          ctx.tell(frontend, { type: 'WorkerSuspect', incarnation, code });
          return state;
        }
        case 'Cleared': {
          const worker = state.workers.get(message.incarnation);
          if (!worker || isMisfit(worker.info, config)) return state;
          worker.suspect = undefined;
          break;
        }
        case 'Facts':
          ctx.tell(message.replyTo, factsOf(state, ctx.now()));
          return state;
        case 'Replica':
          failedElsewhere(state, message, ctx);
          if (!replicaNews(state.replicas, message, ctx)) return state;
          break;
        case 'PeerUp':
        case 'PeerGone':
        case 'WhenInStep':
        case 'ReplicaTell':
        case 'ReplicaLook':
        case 'GivenWay':
          if (!replicaNews(state.replicas, message, ctx)) return state;
          break;
        case 'Load': {
          const worker = state.workers.get(message.incarnation);
          if (!worker) return state;
          worker.reported = message.busySlots + message.waiting;
          worker.reportedBlocks = message.usedKvBlocks;
          if (worker.reported < (worker.info.slots ?? 1)) worker.full = false;
          break;
        }
      }
      drain(state, config, ctx);
      return state;
    },
  };
}

/** Its KV cannot be told of, nor handed to or taken from workers of the set. A card that does not say is of an older worker. */
const isMisfit = ({ blockTokens }: InstanceInfo, config: RouterConfig): boolean =>
  blockTokens !== undefined && blockTokens !== config.blockTokens;
