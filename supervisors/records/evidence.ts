/** All that the records of a source say of one request. */
import type { Turn } from '../../actors/index.js';
import {
  type Body,
  type Component,
  decodeCbor,
  type Envelope,
  finishCodes,
  type JournalEnd,
  type JournalEntry,
  type StreamName,
  subjects,
} from '../../transport/index.js';
import { SupervisorError } from '../errors.js';
import { mintedAt } from './minted.js';
import { type Read, readRecord, type StreamFacts, type TapeRecord } from './record.js';
import { readable, type Source } from './source.js';
import { detailOf } from './wording.js';

interface Said {
  readonly at: number;
  /** Stream and sequence. */
  readonly source: string;
}

export interface Message extends Said {
  readonly id: string;
  /** When the actor it is for was given it, by the clock of its process; undefined: its turns are not on the tape. */
  handledAt: number | undefined;
  readonly sentAt: number;
  readonly attempt: number;
  readonly from: string;
  readonly to: string;
  readonly type: string;
  readonly detail: string;
  /** Choices it asks for; 0 if it does not say. */
  readonly choices: number;
  /** Deadline it was sent with, in milliseconds. */
  readonly budgetMs: number;
}

/** Tokens of one choice that one worker sent in one attempt. */
export interface TokenRun {
  readonly worker: string;
  readonly attempt: number;
  readonly choice: number;
  /** Position of its first token. */
  readonly first: number;
  count: number;
  frames: number;
  readonly firstAt: number;
  lastAt: number;
  finish: number;
  readonly cached: number | undefined;
  readonly source: string;
  lastSource: string;
}

export interface Route extends Said {
  readonly attempt: number;
  readonly prefill: string | undefined;
  readonly decode: string | undefined;
  readonly reason: string;
  /** Workers that were compared. */
  readonly compared: number;
}

export interface Evidence {
  readonly request: string;
  readonly streams: readonly StreamFacts[];
  gateway: string;
  model: string;
  promptTokens: number;
  entry: JournalEntry | undefined;
  entrySeq: number | undefined;
  end: JournalEnd | undefined;
  endSeq: number | undefined;
  /** When the journal says that it ended, at the latest. */
  endedBy: number | undefined;
  lostAt: number | undefined;
  closedBy: string;
  /** The journal's last word of its gateway names it. */
  isOpen: boolean;
  readonly messages: Message[];
  readonly tokens: TokenRun[];
  readonly routes: Route[];
  /** Turns of processes that were about it: what their actors were given, and did. */
  readonly turns: (Said & { readonly process: string; readonly detail: string })[];
  readonly down: (Said & { readonly incarnation: string; readonly reason: string })[];
  readonly dead: (Said & { readonly attempt: number; readonly detail: string })[];
  readonly unreadable: { readonly source: string; readonly why: string }[];
}

/** Clocks of a gateway and of its broker may differ by so much. */
const slackMs = 5_000;
const idPattern = /(?:^|[^0-9a-z])([0-7][0-9a-hjkmnp-tv-z]{25})$/;

/** The id in what a client has of it (`chatcmpl-…`, `msg_…`), if there is one. */
export const requestIdIn = (text: string): string | undefined => idPattern.exec(text)?.[1];

const sourceOf = ({ stream, seq }: TapeRecord) => `${stream} ${seq}`;

/**
 * The evidence of every request that goes by a name: its own id, or the `x-request-id` of its client, which need not be unique. Oldest first.
 * Rejects with SUP_TRACE when there is none, and as `Source.read` does.
 */
export async function gather(source: Source, name: string): Promise<readonly Evidence[]> {
  const id = requestIdIn(name);
  const found = new Map<string, Evidence>();
  const unreadable: Evidence['unreadable'] = [];
  await source.read({ streams: ['JOURNAL'], since: 0 }, (record) => {
    const read = readRecord(record);
    if (read.content.kind === 'journal') keepBooks(found, read, name, id, source.streams);
    else if (read.content.kind === 'unreadable') unreadable.push({ source: sourceOf(record), why: read.content.why });
  });
  if (found.size === 0 && id !== undefined) found.set(id, fresh(id, source.streams));
  for (const evidence of found.values()) {
    evidence.unreadable.push(...unreadable);
    await search(source, evidence);
  }
  const known = [...found.values()].filter(
    ({ messages, routes, entry, end, lostAt, dead, isOpen }) =>
      messages.length + routes.length + dead.length > 0 || entry || end || lostAt !== undefined || isOpen,
  );
  if (known.length === 0) throw new SupervisorError('SUP_TRACE', [name, whereItLooked(source)]);
  return known;
}

function whereItLooked({ streams }: Source): string {
  const held = streams.map(
    ({ name, since }) => `${name} ${since === 0 ? 'is empty' : `since ${new Date(since).toISOString()}`}`,
  );
  return held.join(', ');
}

const fresh = (request: string, streams: readonly StreamFacts[]): Evidence => ({
  request,
  streams,
  gateway: '',
  model: '',
  promptTokens: 0,
  entry: undefined,
  entrySeq: undefined,
  end: undefined,
  endSeq: undefined,
  endedBy: undefined,
  lostAt: undefined,
  closedBy: '',
  isOpen: false,
  messages: [],
  tokens: [],
  routes: [],
  turns: [],
  down: [],
  dead: [],
  unreadable: [],
});

function keepBooks(
  found: Map<string, Evidence>,
  { record, content }: Read,
  name: string,
  id: string | undefined,
  streams: readonly StreamFacts[],
): void {
  if (content.kind !== 'journal') return;
  const { accepted, ended, open, lost, by, gateway } = content.journal;
  const of = (req: string): Evidence => {
    let evidence = found.get(req);
    if (evidence === undefined) {
      evidence = fresh(req, streams);
      found.set(req, evidence);
    }
    evidence.gateway = gateway;
    return evidence;
  };
  const isMeant = ({ req, label }: { readonly req: string; readonly label?: string }) =>
    req === id || label === name || found.has(req);
  for (const evidence of found.values()) if (evidence.gateway === gateway) evidence.isOpen = false;
  for (const entry of accepted.filter(isMeant))
    Object.assign(of(entry.req), { entry, entrySeq: record.seq, isOpen: true });
  for (const req of open) if (req === id || found.has(req)) of(req).isOpen = true;
  for (const end of ended.filter(isMeant))
    Object.assign(of(end.req), { end, endSeq: record.seq, endedBy: record.at, isOpen: false });
  for (const req of lost) {
    if (req === id || found.has(req))
      Object.assign(of(req), { lostAt: record.at, closedBy: by, endSeq: record.seq, isOpen: false });
  }
}

async function search(source: Source, evidence: Evidence): Promise<void> {
  const { request, end, endedBy } = evidence;
  const minted = mintedAt(request);
  const since = Math.min(minted, endedBy === undefined ? minted : endedBy - (end?.totalMs ?? 0)) - slackMs;
  // What its workers say last follows its end closely.
  const until = endedBy === undefined ? undefined : endedBy + slackMs;
  const span = { since, ...(until !== undefined && { until }) };
  let num: number | undefined;
  const unheard: Read[] = [];

  const note = (read: Read): void => {
    const { record, content } = read;
    const said = { at: record.at, source: sourceOf(record) };
    switch (content.kind) {
      case 'message':
        if (content.message.type === 'Down') {
          const { incarnation, reason } = content.message.body as Body<'Down'>;
          evidence.down.push({ ...said, incarnation, reason });
        } else if (content.message.req === request) {
          num = keepMessage(evidence, content.message, said) ?? num;
        }
        break;
      case 'step':
        // Of which request its items are is known once a message has told its number.
        if (num === undefined) unheard.push(read);
        else keepTokens(evidence, read, num);
        break;
      case 'routes':
        keepRoutes(evidence, read);
        break;
      case 'dead':
        if (read.requests.includes(request)) {
          const { code, detail, attempt } = content.letter;
          evidence.dead.push({ ...said, attempt, detail: `${code}: ${detail}` });
        }
        break;
      case 'map':
        if (read.requests.includes(request)) {
          const { type, from, to, attempt = 0 } = read;
          const detail = 'in chunks';
          evidence.messages.push({
            ...said,
            id: '',
            handledAt: undefined,
            sentAt: record.at,
            type,
            from,
            to,
            attempt,
            detail,
            choices: 0,
            budgetMs: 0,
          });
        }
        break;
      case 'unreadable':
        evidence.unreadable.push({ source: said.source, why: content.why });
        break;
      case 'turn':
        keepTurn(evidence, content.turn, said);
        break;
      case 'journal':
        break;
    }
  };
  const look = async (streams: readonly StreamName[], filters?: readonly string[]) => {
    await source.read({ streams, ...span, ...(filters && { filters }) }, (record) => note(readRecord(record)));
  };
  await look(['MAIL']);
  const s = subjects(source.namespace);
  const whose = evidence.gateway === '' ? [s.all('out'), s.tape('gateway', '*')] : ownOf(source, evidence.gateway);
  await look(['TAPE'], [...whose, s.all('ack'), s.all('down')]);
  for (const read of unheard) if (num !== undefined) keepTokens(evidence, read, num);
  await look(readable.filter((name) => name === 'DEAD'));

  const concerned = new Set([
    evidence.gateway,
    ...evidence.routes.flatMap(({ prefill, decode }) => [prefill, decode]),
    ...evidence.messages.flatMap(({ from, to }) => [from.split('.')[1], to.split('.')[1]]),
  ]);
  // Last, for a turn tells when a message was handled that has been read by then.
  const processes = evidence.messages.map(({ to }) => to.split('.').slice(0, 2).join('.'));
  await look(
    ['TAPE'],
    [...new Set(processes)].map((process) => {
      const [component, incarnation = ''] = process.split('.') as [Component, string];
      return s.turns(component, incarnation);
    }),
  );
  const others = evidence.down.filter(({ incarnation }) => !concerned.has(incarnation));
  for (const other of others) evidence.down.splice(evidence.down.indexOf(other), 1);
}

const ownOf = ({ namespace }: Source, gateway: string) => {
  const s = subjects(namespace);
  return [s.out(gateway), s.tape('gateway', gateway)];
};

/** The number its gateway gave it, if the message has it. */
function keepMessage(evidence: Evidence, message: Envelope, said: Said): number | undefined {
  const { id, type, from, to, attempt, ts, budgetMs } = message;
  const body = message.body as Partial<Body<'Reserve'> & Body<'Accepted'>>;
  const { reply, work, num } = body;
  if (reply !== undefined) evidence.gateway = reply.gateway;
  else if (to.startsWith('gateway.')) evidence.gateway = to.split('.')[1] as string;
  if (work !== undefined) {
    evidence.model = work.model;
    evidence.promptTokens = work.prompt.length;
  }
  const choices = work?.choices.length ?? 0;
  const detail = detailOf(message);
  evidence.messages.push({
    ...said,
    id,
    handledAt: undefined,
    sentAt: ts,
    attempt,
    from,
    to,
    type,
    detail,
    choices,
    budgetMs,
  });
  return reply?.num ?? num;
}

function keepTokens(evidence: Evidence, { record, content }: Read, num: number): void {
  if (content.kind !== 'step' || !record.subject.endsWith(`.${evidence.gateway}`)) return;
  const { worker, items } = content.frame;
  for (const item of items) {
    if (item.num !== num) continue;
    const { attempt, choice, position, tokens, finish, cached } = item;
    const at = record.at;
    const source = sourceOf(record);
    const run = evidence.tokens.find(
      (each) => each.worker === worker && each.attempt === attempt && each.choice === choice,
    );
    if (run === undefined) {
      evidence.tokens.push({
        ...{ worker, attempt, choice, first: position, count: tokens.length, frames: 1, firstAt: at, lastAt: at },
        ...{ finish, cached, source, lastSource: source },
      });
    } else {
      run.count += tokens.length;
      run.frames += 1;
      run.lastAt = at;
      run.lastSource = source;
      if (finish !== finishCodes.none) run.finish = finish;
    }
  }
}

/** Deliveries of which each turn has some, whomever they concern. */
const everyday = new Set(['Load', 'Facts', 'Frame', 'Sweep', 'Heard', 'HeardFrom']);
/** Entries of a turn that are told: it may have been about many requests. */
const entriesTold = 6;

/** What a process did about the request in one turn, and that it was then that its messages were handled. */
function keepTurn({ request, messages, turns }: Evidence, { process, at, requests, entries }: Turn, said: Said): void {
  if (!requests.includes(request)) return;
  for (const { actor, input } of entries) {
    const id = idOf(input);
    const message = id === '' ? undefined : messages.find((each) => each.id === id && each.to === actor);
    if (message !== undefined) message.handledAt ??= at;
  }
  const own = entries.filter(({ type }) => !everyday.has(type));
  const told = own.slice(0, entriesTold).map(({ actor, type, outputs }) => {
    const did = outputs.flatMap((output) => (output.type === '' ? [] : [`${output.kind} ${output.type}`]));
    return `${actor.split('.').at(-1)} ${type}${did.length === 0 ? '' : `: ${[...new Set(did)].join(', ')}`}`;
  });
  const more = own.length > told.length ? [`${own.length - told.length} more`] : [];
  if (own.length > 0) turns.push({ ...said, at, process, detail: [...told, ...more].join('; ') });
}

function idOf(input: Uint8Array): string {
  try {
    const { id } = (decodeCbor(input) ?? {}) as { readonly id?: unknown };
    return typeof id === 'string' ? id : '';
  } catch {
    return '';
  }
}

function keepRoutes(evidence: Evidence, { record, content }: Read): void {
  if (content.kind !== 'routes') return;
  for (const { id, attempt, at, placed, decisions, disagg } of content.routes.records) {
    if (id !== evidence.request) continue;
    if (evidence.gateway === '') evidence.gateway = content.routes.gateway;
    const compared = Math.max(0, ...decisions.map(({ candidates }) => candidates.length));
    const { prefill, decode } = placed ?? {};
    evidence.routes.push({
      at,
      source: sourceOf(record),
      attempt,
      prefill,
      decode,
      reason: disagg?.reason ?? '',
      compared,
    });
  }
}
