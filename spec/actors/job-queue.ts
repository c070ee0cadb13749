/** The prefill queue in one process and virtual time: a work queue as the broker keeps one, with acknowledgements and redelivery. */
import type { JobSource, PrefillQueue } from '../../actors/index.js';
import type { Body, Head } from '../../transport/index.js';

export interface QueuedJob extends Head {
  readonly type: 'Job';
  readonly ticket: number;
  readonly body: Body<'RemotePrefill'>;
}

interface Kept {
  readonly job: Omit<QueuedJob, 'ticket'>;
  readonly until: number;
  /** Who has it, under which ticket; undefined: it waits. */
  taken: { readonly ticket: number; undo(): void } | undefined;
}

export interface JobQueueOptions {
  now(): number;
  setTimer(ms: number, fire: () => void): () => void;
  /** Hands a job to a taker. */
  deliver(taker: string, job: QueuedJob): void;
  /** Without a sign of work for this long somebody else gets it. */
  readonly ackWaitMs: number;
}

export function createJobQueue(options: JobQueueOptions) {
  const { now, setTimer, ackWaitMs } = options;
  let jobs: Kept[] = [];
  const wants = new Map<string, number>();
  const buried: string[] = [];
  let tickets = 0;
  /** Rejects every job from now on, with this code. */
  let broken: string | undefined;
  let copies = 1;
  const counts = { stored: 0, delivered: 0 };

  const problem = (code: string) => Promise.reject(Object.assign(new Error(code), { code }));
  const remove = (kept: Kept) => {
    kept.taken?.undo();
    jobs = jobs.filter((other) => other !== kept);
  };

  function pump(): void {
    for (const kept of jobs) {
      if (kept.taken !== undefined) continue;
      if (now() > kept.until) {
        remove(kept);
        continue;
      }
      // The one who wants most, so that two copies of one job go to two takers.
      const taker = [...wants].sort(([, a], [, b]) => b - a).find(([, count]) => count > 0);
      if (taker === undefined) return;
      wants.set(taker[0], taker[1] - 1);
      const ticket = ++tickets;
      hold(kept, ticket);
      counts.delivered++;
      options.deliver(taker[0], { ...kept.job, ticket });
    }
  }

  function hold(kept: Kept, ticket: number): void {
    kept.taken?.undo();
    const undo = setTimer(ackWaitMs, () => {
      kept.taken = undefined;
      pump();
    });
    kept.taken = { ticket, undo };
  }

  const of = (ticket: number) => jobs.find(({ taken }) => taken?.ticket === ticket);

  const queue: PrefillQueue = {
    put(body, head) {
      if (broken !== undefined) return problem(broken);
      for (let copy = 0; copy < copies; copy++) {
        counts.stored++;
        const job = { type: 'Job', ...head, body: { ...body, round: body.round + copy } } as const;
        jobs.push({ job, until: now() + head.budgetMs, taken: undefined });
      }
      pump();
      return Promise.resolve();
    },
    backlog: () =>
      broken === 'NET_DOWN' ? problem(broken) : Promise.resolve(jobs.filter(({ taken }) => taken === undefined).length),
    bury: (_job, { req }) => void buried.push(req),
  };

  return {
    queue,
    counts,
    /** Requests that went to the dead letters. */
    buried,
    size: () => jobs.length,
    source(taker: string): JobSource {
      return {
        want(count) {
          wants.set(taker, count);
          pump();
        },
        done(ticket) {
          const kept = of(ticket);
          if (kept !== undefined) remove(kept);
        },
        working(held) {
          for (const ticket of held) {
            const kept = of(ticket);
            if (kept !== undefined) hold(kept, ticket);
          }
        },
        giveBack(ticket) {
          const kept = of(ticket);
          if (kept === undefined) return;
          kept.taken?.undo();
          kept.taken = undefined;
          pump();
        },
      };
    },
    /** A taker is gone: nothing more goes there. */
    leave: (taker: string) => void wants.delete(taker),
    /** Until `undefined`. */
    refuse(code: string | undefined): void {
      broken = code;
    },
    /** Every job is there twice from now on, as if its owner had put it there again. */
    repeat(): void {
      copies = 2;
    },
    /** The broker's memory is gone. */
    forget(): void {
      for (const kept of jobs) kept.taken?.undo();
      jobs = [];
    },
  };
}
