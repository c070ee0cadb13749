/**
 * Both ends of the prefill queue (design 4.1, class job): decode workers put jobs on the subject of their model's KV, prefill workers with
 * the same KV take them. A job whose budget ran out on the queue is nobody's any more; one that cannot be read goes to DEAD, and so does
 * one that was handed out again and again.
 */
import { type Address, address, parts } from './address.js';
import type { Bus, TakenJob } from './bus.js';
import { deadLetter } from './dead-letters.js';
import { decodeEnvelope, encodeEnvelope } from './envelope.js';
import type { Body } from './messages.js';
import type { Envelope, Head } from './post.js';
import { subjects } from './subjects.js';

type Job = Body<'RemotePrefill'>;

export interface JobBoard {
  /** Resolves when stored; rejects as `Bus.store` does. The job may be taken for `head.budgetMs`. */
  put(job: Job, head: Head): Promise<unknown>;
  backlog(): Promise<number>;
  bury(job: Job, head: Head, detail: string): void;
}

const storeMs = 2_000;

/** `pool`: a subject token that all workers of interchangeable KV share. */
export function openJobBoard(bus: Bus, pool: string, self: Address): JobBoard {
  const subject = subjects(bus.namespace).job(pool);
  let ordinal = 0;
  const encode = (body: Job, head: Head): { readonly id: string; readonly bytes: Uint8Array } => {
    ordinal += 1;
    const id = `${self}:job:${ordinal}`;
    const to = address('prefill', pool, 'worker');
    const envelope = { v: 1, type: 'RemotePrefill', id, from: self, to, seq: ordinal, ...head, body } as const;
    return { id, bytes: encodeEnvelope({ ...envelope, ts: bus.clock.wallTime() }) };
  };
  return {
    put(body, head) {
      const { id, bytes } = encode(body, head);
      return bus.store(subject, bytes, id, storeMs);
    },
    backlog: () => bus.backlog(subject),
    bury(body, head, detail) {
      const { bytes } = encode(body, head);
      const { attempt } = head;
      deadLetter(bus, parts(self).component, { code: 'WRK_JOB_DEAD', detail, subject, seq: 0, attempt, bytes });
    },
  };
}

export interface JobTaker {
  /** So many more may come. */
  want(count: number): void;
  /** A ticket is told of once; later ones, and those of a broker that forgot its jobs, do nothing. */
  done(ticket: number): void;
  working(tickets: readonly number[]): void;
  giveBack(ticket: number): void;
  stop(): void;
  readonly counters: {
    readonly taken: number;
    readonly expired: number;
    readonly malformed: number;
    readonly buried: number;
  };
}

/**
 * So often a job is handed out. The takers count, not the broker: past its own `max_deliver` it would keep the job for ever, out of everybody's
 * sight. D, which waits for an announcement only for so long, computes the prompt itself.
 */
const mostDeliveries = 5;
/** The broker waits several times as long. */
const workingEveryMs = 1_000;

/** The handler is synchronous; a throw gives the job back. */
export function takeJobs(
  bus: Bus,
  pool: string,
  self: Address,
  handler: (ticket: number, job: Envelope<'RemotePrefill'>) => void,
): JobTaker {
  const subject = subjects(bus.namespace).job(pool);
  const open = new Map<number, TakenJob>();
  const counters = { taken: 0, expired: 0, malformed: 0, buried: 0 };
  let tickets = 0;
  let saidAt = Number.NEGATIVE_INFINITY;

  const taker = bus.take(subject, (job) => {
    const decoded = decodeEnvelope(job.data);
    if (!decoded.ok || decoded.envelope.type !== 'RemotePrefill') {
      counters.malformed += 1;
      const { code, detail } = decoded.ok
        ? { code: 'NET_MALFORMED', detail: `${decoded.envelope.type} is no job` }
        : decoded.fault;
      const { seq, data: bytes } = job;
      deadLetter(bus, parts(self).component, { code, detail, subject, seq, attempt: 0, bytes });
      job.done();
      return;
    }
    if (job.ageMs > decoded.envelope.budgetMs) {
      counters.expired += 1;
      job.done();
      return;
    }
    if (job.deliveries > mostDeliveries) {
      counters.buried += 1;
      const { seq, data: bytes } = job;
      const detail = `handed out ${mostDeliveries} times`;
      const { attempt } = decoded.envelope;
      deadLetter(bus, parts(self).component, { code: 'WRK_JOB_DEAD', detail, subject, seq, attempt, bytes });
      job.done();
      return;
    }
    const ticket = ++tickets;
    open.set(ticket, job);
    counters.taken += 1;
    handler(ticket, decoded.envelope);
  });

  function end(ticket: number, how: 'done' | 'giveBack'): void {
    open.get(ticket)?.[how]();
    open.delete(ticket);
  }
  return {
    counters,
    want: (count) => taker.want(count),
    stop: () => taker.stop(),
    done: (ticket) => end(ticket, 'done'),
    giveBack: (ticket) => end(ticket, 'giveBack'),
    working(held) {
      const now = bus.clock.now();
      if (now - saidAt < workingEveryMs) return;
      saidAt = now;
      for (const ticket of held) open.get(ticket)?.working();
    },
  };
}
