/**
 * The other end of the prefill queue (decode-first, design 5.3): a prefill worker asks for as many prompts as it has slots free, tells the
 * decode worker that it has taken one, and gets the prompt from there. A job leaves the queue when its hand-over is done.
 */
import { address } from '../../transport/index.js';
import type { WorkerApi, WorkerCtx, WorkerMessage, WorkerState } from '../worker/contract.js';
import { isBuried, type Job, requestKey } from '../worker/jobs.js';

/** The prefill queue as a taker uses it. Jobs come as `Job` messages; each ticket is told of once, later ones do nothing. */
export interface JobSource {
  /** So many more may come; replaces what was wanted before. */
  want(count: number): void;
  /** The job leaves the queue. */
  done(ticket: number): void;
  /** It is being worked on: nobody else gets it. */
  working(tickets: readonly number[]): void;
  /** Somebody else may have it, at once. */
  giveBack(ticket: number): void;
}

/** Prefill-first: decode workers send their prompts unasked. */
export const noJobs: JobSource = { want: () => {}, done: () => {}, working: () => {}, giveBack: () => {} };

/** D answers at once, if it lives. */
const answerMs = 1_000;

export function takes(api: WorkerApi, jobs: JobSource) {
  const { config } = api;

  /** Everything that holds a slot, or will. */
  function ask(state: WorkerState): void {
    let busy = state.takes.size;
    for (const { phase } of state.jobs.byKey.values()) if (phase !== 'decoding') busy++;
    jobs.want(state.idle ? 0 : Math.max(0, config.slots - busy));
  }

  function forget(state: WorkerState, key: string, how: 'done' | 'giveBack'): void {
    const take = state.takes.get(key);
    if (take === undefined) return;
    state.takes.delete(key);
    jobs[how](take.ticket);
  }

  function take(state: WorkerState, message: WorkerMessage & { type: 'Job' }, ctx: WorkerCtx): void {
    const { ticket, attempt, body } = message;
    const { reply, decode, round } = body;
    const key = requestKey(reply.gateway, reply.num);
    if (state.idle) {
      jobs.giveBack(ticket);
      return;
    }
    const known = state.jobs.byRequest.get(key);
    const earlier = state.takes.get(key);
    // A decode worker that is gone wants nothing; one that is not known yet puts it there again.
    const pointless = isBuried(state.jobs, key, attempt) || !state.peers.has(decode);
    if (pointless || Math.max(known?.attempt ?? 0, earlier?.attempt ?? 0) > attempt) {
      jobs.done(ticket);
      return;
    }
    if (earlier !== undefined) forget(state, key, 'done');
    if (known?.attempt === attempt && known.phase === 'computing') {
      // Offered again, or delivered again: it is being computed already, and once is enough.
      if (known.ticket !== undefined) jobs.done(known.ticket);
      known.ticket = ticket;
    } else {
      if (known !== undefined) api.drop(state, known, ctx);
      state.takes.set(key, { ticket, attempt, decode, until: ctx.now() + answerMs });
    }
    const taken = { reply, round, taker: config.incarnation };
    ctx.frame(address('decode', decode, 'worker'), 'Taken', taken, api.headOf(message));
  }

  return {
    /** D has sent the prompt of something that was taken. */
    begin(state: WorkerState, job: Job): void {
      const key = requestKey(job.gateway, job.num);
      const taken = state.takes.get(key);
      if (taken?.attempt !== job.attempt) return;
      state.takes.delete(key);
      job.ticket = taken.ticket;
    },
    /** True: the message was about the queue alone. */
    other(state: WorkerState, message: WorkerMessage, ctx: WorkerCtx): boolean {
      switch (message.type) {
        case 'Job':
          take(state, message, ctx);
          ask(state);
          return true;
        case 'KvRelease': {
          const key = requestKey(message.body.reply.gateway, message.body.reply.num);
          if ((state.takes.get(key)?.attempt ?? Number.POSITIVE_INFINITY) > message.attempt) return false;
          forget(state, key, 'done');
          ask(state);
          return true;
        }
        case 'PeerSeen':
          state.peers.add(message.incarnation);
          return true;
        case 'PeerLeaving':
          return true;
        case 'PeerGone':
          state.peers.delete(message.incarnation);
          for (const [key, { decode }] of state.takes) {
            if (decode === message.incarnation) forget(state, key, 'done');
          }
          // Nobody will fetch the KV; the gateway has the request served elsewhere. It may still ask for what ended here at token 1.
          for (const job of [...state.jobs.byKey.values()]) {
            if (job.peer === message.incarnation && job.phase !== 'decoding') api.drop(state, job, ctx);
          }
          return true;
        default:
          return false;
      }
    },
    closed(state: WorkerState, job: Job): void {
      if (job.ticket !== undefined) jobs.done(job.ticket);
      job.ticket = undefined;
      ask(state);
    },
    /** The engine gets on with what it has, in its order. */
    progressed(state: WorkerState): void {
      const held: number[] = [];
      for (const { ticket } of state.jobs.byKey.values()) if (ticket !== undefined) held.push(ticket);
      if (held.length > 0) jobs.working(held);
    },
    swept(state: WorkerState, now: number): void {
      for (const [key, { until }] of state.takes) if (now >= until) forget(state, key, 'giveBack');
      ask(state);
    },
  };
}
