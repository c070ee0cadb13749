/**
 * What happened to one request, across processes, from whatever the records still say (design 7). Times are those at which the broker stored
 * a message, so that one clock orders all of it; before the first message stands the time in the request's id, which its gateway minted.
 */
import { finishCodes } from '../../transport/index.js';
import type { Evidence } from './evidence.js';
import { mintedAt } from './minted.js';
import { type Phase, phasesOf } from './phases.js';

export interface Happening {
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly attempt: number | undefined;
  readonly from: string;
  readonly to: string;
  readonly type: string;
  readonly detail: string;
  /** Where it is recorded, e.g. `MAIL 12`; '' for what follows from others. */
  readonly source: string;
  /** Of a message: when its sender says it was sent, by the sender's clock. */
  readonly sentAt?: number;
  /** Of a message: when the actor that it is for was given it, by the clock of its process. */
  readonly handledAt?: number;
}

export type Outcome = 'complete' | 'failed' | 'cancelled' | 'running' | 'unknown';

export interface Trace {
  readonly request: string;
  /** The client's `x-request-id`, or what it was given for one; '' = not known. */
  readonly label: string;
  readonly gateway: string;
  readonly model: string;
  readonly outcome: Outcome;
  readonly code: string;
  readonly acceptedAt: number;
  /** 0: it has not ended, or nobody knows. */
  readonly endedAt: number;
  readonly attempts: number;
  readonly choices: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** From accept; -1: there was none, or nobody knows. */
  readonly firstTokenMs: number;
  readonly totalMs: number;
  readonly phases: readonly Phase[];
  readonly happenings: readonly Happening[];
  /** What the records should say and do not. */
  readonly missing: readonly string[];
}

const nameOf = (address: string) => address.split('.').slice(1).join('.');
const finishes = Object.entries(finishCodes);
const finishName = (code: number) => finishes.find(([, value]) => value === code)?.[0] ?? String(code);

export function traceOf(evidence: Evidence): Trace {
  const { request, entry, end, lostAt, messages, tokens, routes, turns, down, dead } = evidence;
  const acceptedAt = mintedAt(request);
  const firstAt = tokens.length === 0 ? 0 : Math.min(...tokens.map(({ firstAt: at }) => at));
  const ttft = end?.ttftMs ?? (firstAt === 0 ? -1 : firstAt - acceptedAt);
  const finished = new Map(tokens.filter(({ finish }) => finish !== finishCodes.none).map((run) => [run.choice, run]));
  const choices = Math.max(
    1,
    ...messages.map(({ choices: count }) => count),
    ...tokens.map(({ choice }) => choice + 1),
  );
  const settled = finished.size >= choices;
  const lastAt = settled ? Math.max(...[...finished.values()].map(({ lastAt: at }) => at)) : 0;
  const settledAt = end?.outcome === 'complete' ? lastAt : 0;
  // The journal counts by the gateway's clock, which may be some milliseconds behind: what is over has its last token.
  const endedAt =
    end?.totalMs === undefined ? (evidence.endedBy ?? lostAt ?? lastAt) : Math.max(acceptedAt + end.totalMs, settledAt);
  const counted = tokens.reduce((sum, { count }) => sum + count, 0);
  const attempts = Math.max(
    1,
    end?.attempts ?? 0,
    ...messages.map(({ attempt }) => attempt),
    ...routes.map(({ attempt }) => attempt),
  );
  const outcome = outcomeOf(evidence, settled);
  const happenings: Happening[] = [
    {
      at: acceptedAt,
      attempt: undefined,
      from: 'client',
      to: evidence.gateway,
      type: 'accepted',
      detail: entry === undefined ? '' : `${entry.model}, ${entry.promptTokens} prompt tokens`,
      source: entry === undefined ? '' : `JOURNAL ${evidence.entrySeq}`,
    },
    ...routes.map((route) => ({
      at: route.at,
      attempt: route.attempt,
      from: `${evidence.gateway}.router`,
      to: '',
      type: 'placed',
      detail: placedText(route),
      source: route.source,
    })),
    ...messages.map(({ at, sentAt, handledAt, attempt, from, to, type, detail, source }) => ({
      at,
      sentAt,
      ...(handledAt !== undefined && { handledAt }),
      attempt,
      from: nameOf(from),
      to: nameOf(to),
      type,
      detail,
      source,
    })),
    ...tokens.flatMap((run) => tokenRows(run, evidence.gateway, choices)),
    ...turns.map(({ at, process, detail, source }) => ({
      at,
      attempt: undefined,
      from: process,
      to: '',
      type: 'turn',
      detail,
      source,
    })),
    ...down.map(({ at, incarnation, reason, source }) => ({
      at,
      attempt: undefined,
      from: 'node',
      to: '',
      type: 'Down',
      detail: `${incarnation}: ${reason}`,
      source,
    })),
    ...dead.map(({ at, attempt, detail, source }) => ({
      at,
      attempt,
      from: '',
      to: '',
      type: 'dead letter',
      detail,
      source,
    })),
  ];
  if (endedAt > 0) {
    happenings.push({
      at: endedAt,
      attempt: end?.attempts,
      from: evidence.gateway,
      to: lostAt === undefined ? 'client' : '',
      type: 'ended',
      detail: [outcome, end?.code ?? (lostAt === undefined ? '' : `gateway_lost, closed by ${evidence.closedBy}`)]
        .filter(Boolean)
        .join(' '),
      source: evidence.endSeq === undefined ? '' : `JOURNAL ${evidence.endSeq}`,
    });
  }
  happenings.sort((a, b) => a.at - b.at);
  const completionTokens = end?.completionTokens ?? counted;
  const trace: Omit<Trace, 'missing'> = {
    request,
    label: end?.label ?? entry?.label ?? '',
    gateway: evidence.gateway,
    model: entry?.model ?? evidence.model,
    outcome,
    code: end?.code ?? (lostAt === undefined ? '' : 'gateway_lost'),
    acceptedAt,
    endedAt,
    attempts,
    choices,
    promptTokens: end?.promptTokens ?? entry?.promptTokens ?? evidence.promptTokens,
    completionTokens,
    firstTokenMs: ttft,
    totalMs: end?.totalMs ?? (endedAt > 0 ? endedAt - acceptedAt : -1),
    phases: phasesOf(evidence, { acceptedAt, endedAt, attempts }),
    happenings,
  };
  return { ...trace, missing: missingFrom(evidence, trace, counted) };
}

function outcomeOf({ end, lostAt, isOpen }: Evidence, settled: boolean): Outcome {
  if (end !== undefined) return end.outcome as Outcome;
  if (lostAt !== undefined) return 'failed';
  if (settled) return 'complete';
  return isOpen ? 'running' : 'unknown';
}

function placedText({ prefill, decode, reason, compared }: Evidence['routes'][number]): string {
  if (decode === undefined) return 'waits: nobody can take it';
  const where = prefill === undefined ? decode : `${prefill}, then ${decode}`;
  return `on ${where} (${compared} compared${reason === '' ? '' : `, ${reason}`})`;
}

function tokenRows(run: Evidence['tokens'][number], gateway: string, choices: number): Happening[] {
  const { worker, attempt, choice, first, count, frames, firstAt, lastAt, finish, cached, source, lastSource } = run;
  const which = choices > 1 ? `choice ${choice}, ` : '';
  const had = cached === undefined ? '' : `, ${cached} prompt tokens were cached`;
  const base = { attempt, from: `${worker}.worker`, to: `${gateway}.frontend` };
  const rows: Happening[] = [
    { ...base, at: firstAt, type: 'tokens', detail: `${which}token ${first + 1}${had}`, source },
  ];
  const how = finish === finishCodes.none ? '' : `, finish ${finishName(finish)}`;
  if (frames > 1 || how !== '')
    rows.push({
      ...base,
      at: lastAt,
      type: 'tokens',
      detail: `${which}tokens ${first + 1} to ${first + count} in ${frames} ${frames === 1 ? 'frame' : 'frames'}${how}`,
      source: lastSource,
    });
  return rows;
}

/** Never silently partial: what must have been said and is not there is named, with the likely reason. */
function missingFrom(evidence: Evidence, trace: Omit<Trace, 'missing'>, counted: number): string[] {
  const missing: string[] = [];
  const facts = (name: string) => evidence.streams.find((stream) => stream.name === name);
  const begins = (name: string): string => {
    const stream = facts(name);
    if (stream === undefined || stream.since === 0) return `${name} is empty`;
    const kept = `${name} (${stream.storage}, ${Math.round(stream.maxAgeMs / 60_000)} min)`;
    return `${kept} begins at ${new Date(stream.since).toISOString()}`;
  };
  const late = (name: string) => (facts(name)?.since ?? 0) === 0 || (facts(name)?.since ?? 0) > trace.acceptedAt;
  for (let attempt = 1; attempt <= trace.attempts; attempt++) {
    const ordered = evidence.messages.some(
      (message) => message.attempt === attempt && (message.type === 'Reserve' || message.type === 'Generate'),
    );
    if (ordered) continue;
    const { decode } = evidence.routes.find((route) => route.attempt === attempt) ?? {};
    const gone = evidence.down.some(({ incarnation }) => incarnation === decode);
    const why = gone
      ? `the mailbox of ${decode} was removed when it went down (tape.level full keeps it)`
      : late('MAIL')
        ? begins('MAIL')
        : 'it was never placed, or its mailbox was removed when its worker went down';
    missing.push(`the order of attempt ${attempt}: ${why}`);
  }
  if (trace.completionTokens > counted)
    missing.push(
      `${trace.completionTokens - counted} of ${trace.completionTokens} tokens: ${late('TAPE') ? begins('TAPE') : 'their frames were lost, and the gateway asked its worker for them again'}`,
    );
  if (evidence.routes.length === 0)
    missing.push(
      `the router's decisions: ${late('TAPE') ? begins('TAPE') : 'tape.level is off, or they are not written yet'}`,
    );
  if (evidence.entry === undefined && evidence.end === undefined && evidence.lostAt === undefined)
    missing.push('its entry in the journal: it is written four times a second, or was aged out');
  for (const { source, why } of evidence.unreadable) missing.push(`${source} cannot be read: ${why}`);
  return missing;
}
