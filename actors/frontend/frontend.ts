/**
 * The frontend actor owns every request of its gateway from accept to end (design 5.1). Workers and router are asked, the
 * client is told; a leg that fails is replaced by the next attempt with prompt + tokens already delivered (design 5.4).
 * Here is who is told what; each of the files beside it is one part of a request's life.
 */
import type { Behaviour, Ref } from '../kernel/contract.js';
import { clientError } from '../refusals.js';
import type { RouterMessage } from '../router/messages.js';
import { dryRunDone, submit, unroutable } from './admission.js';
import { askAgain, broker, sweep } from './deadlines.js';
import { abandon, accepted, askRouter, progress, routed } from './dispatch.js';
import { discard, ended, lost, workerLost } from './ending.js';
import { isLeg, type Request } from './request.js';
import {
  clock,
  current,
  type FrontendConfig,
  type FrontendMessage,
  type FrontendPorts,
  type FrontendState,
  factsOf,
  newState,
  type WorkerNews,
} from './state.js';
import { frame, resynced } from './tokens.js';

export function frontendActor(
  config: FrontendConfig,
  ports: FrontendPorts,
  router: Ref<RouterMessage>,
): Behaviour<FrontendMessage, FrontendState> {
  return {
    name: 'frontend',
    capacity: 100_000,
    start: () => newState(config, ports, router),
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Frame':
          frame(state, message.frame, ctx);
          break;
        case 'Submit':
          submit(state, message, ctx);
          break;
        case 'ClientGone': {
          const r = state.requests.get(state.byTicket.get(message.ticket) ?? -1);
          if (!r) break;
          abandon(state, r, undefined, ctx);
          ended(state, r, 'cancelled', 'client_gone', ctx);
          break;
        }
        case 'Routed': {
          const r = current(state, message.num, message.attempt);
          if (r === undefined) break;
          const stranger = [message.decode, message.prefill].find(
            (each) => each !== undefined && !state.workers.has(each),
          );
          if (stranger === undefined) routed(state, r, message, ctx);
          else lost(state, r, 'WORKER_UNKNOWN', '', stranger, ctx);
          break;
        }
        case 'Queued': {
          const r = current(state, message.num, message.attempt);
          if (r) r.unserved = !message.served;
          break;
        }
        case 'Unroutable': {
          const r = current(state, message.num, message.attempt);
          if (r) unroutable(state, r, message.code, ctx);
          break;
        }
        case 'DryRunDone':
          dryRunDone(message);
          break;
        case 'Accepted': {
          const r = ofLeg(state, message);
          if (r) accepted(state, r, message.body, ctx);
          break;
        }
        case 'Progress': {
          const r = ofLeg(state, message);
          if (r) progress(state, r, message.body, ctx);
          break;
        }
        case 'TakenBy': {
          const r = ofLeg(state, message);
          if (r?.placement !== undefined) r.placement = { ...r.placement, taker: message.body.taker };
          break;
        }
        case 'Refused':
        case 'Failed': {
          const r = ofLeg(state, message);
          const { code, message: detail, worker } = message.body;
          // A prefill leg that fails after D has taken over concerns nobody.
          if (r && !(message.body.leg === 'prefill' && r.phase === 'decoding'))
            lost(state, r, code, detail, worker, ctx);
          break;
        }
        case 'Undelivered': {
          const r = current(state, message.num, message.attempt);
          if (r) lost(state, r, message.code, '', message.worker, ctx);
          break;
        }
        case 'Resynced': {
          const r = current(state, message.num, message.attempt);
          if (r) resynced(state, r, message, ctx);
          break;
        }
        case 'ResyncFailed': {
          const r = current(state, message.num, message.attempt);
          if (r) askAgain(state, r, ctx);
          break;
        }
        case 'WorkerUp':
          state.workers.set(message.incarnation, message.component);
          break;
        case 'WorkerGone':
          state.workers.delete(message.incarnation);
          state.frames.delete(message.incarnation);
          workerLost(state, message.incarnation, 'WORKER_DOWN', message.reason, ctx);
          break;
        case 'WorkerSuspect':
          workerLost(state, message.incarnation, message.code, '', ctx);
          break;
        case 'HeardFrom':
          ctx.tell(message.replyTo, { workers: [...state.heard] });
          state.heard.clear();
          break;
        case 'Broker':
          broker(state, message.up, ctx);
          break;
        case 'Again': {
          const r = current(state, message.num, message.attempt);
          if (r?.phase === 'queued' && r.placement === undefined) askRouter(state, r, ctx);
          break;
        }
        case 'Sweep':
          sweep(state, ctx);
          break;
        case 'Facts':
          ctx.tell(message.replyTo, factsOf(state, clock(state, ctx)));
          break;
      }
      return state;
    },
    about,
    contain(state, message, failures, _error, ctx) {
      const r = subjectOf(state, message);
      if (r !== undefined) discard(state, r, ctx);
      else if (message.type === 'Submit') {
        // Nothing is kept of it yet.
        if (failures <= retries) return 'retry';
        message.stream.fail(clientError('INTERNAL', ''));
      }
      return 'drop';
    },
    stopped(state, _reason, ctx) {
      for (const r of state.requests.values()) {
        try {
          r.stream.fail(clientError('DRAINING', ''));
        } catch (error) {
          ctx.log.error('a client could not be told', { req: r.id, error });
        }
      }
    },
  };
}

/** The request of a worker's news, if it is for that worker to tell. */
function ofLeg(state: FrontendState, { body, attempt }: WorkerNews): Request | undefined {
  const r = current(state, body.num, attempt);
  if (r === undefined || isLeg(r, body.worker)) return r;
  state.stale++;
  return undefined;
}

/** How often a request that could not be taken in is tried again. */
const retries = 2;

/** The request that a message is of: a throw while it is handled ends that one, and nobody else's (decision 0010). */
function about(message: FrontendMessage): string {
  if ('num' in message) return `${message.num}`;
  if ('ticket' in message) return `ticket ${message.ticket}`;
  return 'req' in message ? message.req : '';
}

function subjectOf(state: FrontendState, message: FrontendMessage): Request | undefined {
  if ('ticket' in message) return state.requests.get(state.byTicket.get(message.ticket) ?? -1);
  const { num, attempt } =
    'num' in message
      ? message
      : 'req' in message
        ? { ...message.body, attempt: message.attempt }
        : { num: -1, attempt: 0 };
  const r = state.requests.get(num);
  return r?.attempt === attempt ? r : undefined;
}
