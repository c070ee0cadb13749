/**
 * A trace as the Chrome trace event format has it, which the Perfetto UI opens: a process per process of dynact, a track of phases and one
 * per actor for its messages, an arrow from each message's sending to its handling, or to its storing
 * where the turns of its receiver are not recorded. Times are microseconds since the request was accepted.
 */
import type { Trace } from './timeline.js';

export interface TraceEvent {
  readonly name: string;
  /** Complete slice, metadata, flow start, flow end. */
  readonly ph: 'X' | 'M' | 's' | 'f';
  readonly pid: number;
  readonly tid: number;
  readonly ts?: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly id?: number;
  readonly bp?: 'e';
  readonly args?: Readonly<Record<string, unknown>>;
}

export interface PerfettoTrace {
  readonly displayTimeUnit: 'ms';
  readonly otherData: Readonly<Record<string, unknown>>;
  readonly traceEvents: readonly TraceEvent[];
}

/** So long is a message's slice: an arrow must begin and end in one. */
const messageUs = 1;

export function perfettoOf(trace: Trace): PerfettoTrace {
  const events: TraceEvent[] = [];
  const tracks = new Map<string, { readonly pid: number; readonly tid: number }>();
  const processes = new Map<string, number>();
  const us = (at: number) => Math.max(0, Math.round((at - trace.acceptedAt) * 1000));

  function track(incarnation: string, name: string): { readonly pid: number; readonly tid: number } {
    const key = `${incarnation}/${name}`;
    const known = tracks.get(key);
    if (known !== undefined) return known;
    let pid = processes.get(incarnation);
    if (pid === undefined) {
      pid = processes.size + 1;
      processes.set(incarnation, pid);
      events.push({ name: 'process_name', ph: 'M', pid, tid: 0, args: { name: incarnation } });
    }
    const made = { pid, tid: tracks.size + 1 };
    tracks.set(key, made);
    events.push({ name: 'thread_name', ph: 'M', ...made, args: { name } });
    return made;
  }
  function slice(
    incarnation: string,
    name: string,
    of: string,
    from: number,
    to: number,
    args: Readonly<Record<string, unknown>>,
  ) {
    const dur = Math.max(messageUs, us(to) - us(from));
    events.push({ name, ph: 'X', cat: 'dynact', ...track(incarnation, of), ts: us(from), dur, args });
  }

  const last = Math.max(trace.acceptedAt, ...trace.happenings.map(({ at }) => at));
  const { request, outcome, code, attempts } = trace;
  const gateway = trace.gateway === '' ? 'gateway' : trace.gateway;
  slice(gateway, `request ${outcome}`, 'request', trace.acceptedAt, trace.endedAt || last, { request, code, attempts });
  for (const { name, attempt, where, from, to, cut } of trace.phases) {
    // Phases of two attempts, or of two choices of roles, may overlap: each attempt has a track of its own.
    slice(
      where || gateway,
      cut === '' ? name : `${name}, cut by ${cut}`,
      `attempt ${attempt}: ${name}`,
      from,
      to || last,
      {
        attempt,
        ...(to === 0 && { open: true }),
      },
    );
  }
  let flow = 0;
  for (const { at, sentAt, handledAt = at, attempt, from, to, type, detail, source } of trace.happenings) {
    const [sender = '', actor = 'process'] = from.split('.');
    if (sender === '') continue;
    const args = { detail, source, ...(attempt !== undefined && { attempt }) };
    const [receiver = '', receiving = 'process'] = to.split('.');
    if (sentAt === undefined || receiver === '') {
      slice(sender, type, actor, at, at, args);
      continue;
    }
    // Clocks of hosts differ: nothing is shown as stored before it was sent.
    const left = Math.min(sentAt, at);
    slice(sender, `${type} →`, actor, left, left, args);
    const right = Math.max(at, handledAt);
    slice(receiver, `→ ${type}`, receiving, right, right, args);
    flow += 1;
    const arrow = { name: type, cat: 'message', id: flow };
    events.push({ ...arrow, ph: 's', ...track(sender, actor), ts: us(left) });
    events.push({ ...arrow, ph: 'f', bp: 'e', ...track(receiver, receiving), ts: us(right) });
  }
  const { label, model, acceptedAt } = trace;
  return {
    displayTimeUnit: 'ms',
    otherData: { request, label, model, outcome, code, acceptedAt: new Date(acceptedAt).toISOString() },
    traceEvents: events,
  };
}
