/**
 * Keeps a gateway's books: writes four times a second what was accepted and what has ended, and closes the books of gateways that
 * died. Off the path of any request: the frontend tells and goes on.
 */
import type { Journal, JournalEnd, JournalEntry, LastRecord } from '../../transport/index.js';
import type { Behaviour, Ctx, Ref } from '../kernel/contract.js';
import { codeOf } from '../kernel/errors.js';

export type JournalMessage =
  | { readonly type: 'Accepted'; readonly entry: JournalEntry }
  | { readonly type: 'Ended'; readonly end: JournalEnd }
  | { readonly type: 'Flush' }
  | { readonly type: 'Written'; readonly seq: number }
  | { readonly type: 'NotWritten'; readonly error: Error; readonly ended: readonly JournalEnd[] }
  /** Another has written here: this is the last record now. */
  | { readonly type: 'Overtaken'; readonly seq: number }
  | { readonly type: 'GatewaySeen'; readonly incarnation: string }
  | { readonly type: 'GatewayGone'; readonly incarnation: string }
  | { readonly type: 'Look' }
  | { readonly type: 'Found'; readonly last: readonly LastRecord[] }
  | { readonly type: 'NotFound'; readonly error: Error }
  | { readonly type: 'Closed'; readonly gateway: string; readonly requests: number }
  | { readonly type: 'NotClosed'; readonly gateway: string; readonly error: Error }
  /** Writes what is left; answers when the books are closed, or never. */
  | { readonly type: 'Finish'; readonly done: Ref<{ readonly type: 'Done' }> };

export interface JournalState {
  readonly open: Map<string, JournalEntry>;
  /** Of the open ones, those that no record names yet. */
  readonly fresh: Map<string, JournalEntry>;
  ended: JournalEnd[];
  /** Ends that were forgotten since the last record because too many waited to be written. */
  dropped: number;
  /** Number of the last record of ours. */
  seq: number;
  writing: boolean;
  /** A Flush is on its way. */
  scheduled: boolean;
  readonly living: Set<string>;
  /** A Look is on its way: one for all books that could not be read or closed, however many. */
  looking: boolean;
  done: Ref<{ readonly type: 'Done' }> | undefined;
}

export interface JournalConfig {
  readonly gateway: string;
  /** A gateway that is in the registry nowhere for this long after our start is dead. */
  readonly graceMs: number;
}

const flushMs = 250;
const againMs = 1_000;
const lookAgainMs = 10_000;
const askMs = 15_000;
/** A record holds as many ends; more wait for the next, up to `endsKept`. */
const endsPerRecord = 2_048;
const endsKept = 8_192;

export function journalActor(config: JournalConfig, journal: Journal): Behaviour<JournalMessage, JournalState> {
  type C = Ctx<JournalMessage>;

  /** Many open requests make a long record: it is written less often. */
  function later(state: JournalState, ctx: C, ms = flushMs + state.open.size / 16): void {
    if (state.scheduled || state.writing) return;
    state.scheduled = true;
    ctx.after(ms, { type: 'Flush' });
  }

  function flush(state: JournalState, ctx: C): void {
    if (state.writing) return;
    const ended = state.ended.splice(0, endsPerRecord);
    const record = {
      v: 1 as const,
      gateway: config.gateway,
      by: config.gateway,
      at: ctx.wallTime(),
      open: [...state.open.keys()],
      accepted: [...state.fresh.values()],
      ended,
      lost: [],
    };
    state.fresh.clear();
    state.writing = true;
    ctx.pipe(
      journal.append(record, state.seq),
      askMs,
      (seq) => ({ type: 'Written', seq }),
      (error) => ({ type: 'NotWritten', error, ended }),
    );
  }

  function notWritten(state: JournalState, message: JournalMessage & { type: 'NotWritten' }, ctx: C): void {
    state.writing = false;
    state.ended.unshift(...message.ended);
    bound(state);
    // The next record names everything that is open as new.
    for (const [req, entry] of state.open) state.fresh.set(req, entry);
    if (codeOf(message.error) !== 'NET_CONFLICT') {
      later(state, ctx, againMs);
      return;
    }
    // We were taken for dead and our books were closed, or a record of ours that seemed lost was stored.
    state.writing = true;
    ctx.pipe(
      journal.last(config.gateway),
      askMs,
      (last) => ({ type: 'Overtaken', seq: last[0]?.seq ?? 0 }),
      (error) => ({ type: 'NotWritten', error, ended: [] }),
    );
  }

  function bound(state: JournalState): void {
    const over = state.ended.length - endsKept;
    if (over <= 0) return;
    state.ended.splice(0, over);
    state.dropped += over;
  }

  function lookAgain(state: JournalState, ctx: C): void {
    if (state.looking) return;
    state.looking = true;
    ctx.after(lookAgainMs, { type: 'Look' });
  }

  function look(gateway: string | undefined, ctx: C): void {
    ctx.pipe(
      journal.last(gateway),
      askMs,
      (last) => ({ type: 'Found', last }),
      (error) => ({ type: 'NotFound', error }),
    );
  }

  function close({ record, seq }: LastRecord, ctx: C): void {
    const { gateway, open } = record;
    ctx.pipe(
      journal.append(
        { v: 1, gateway, by: config.gateway, at: ctx.wallTime(), open: [], accepted: [], ended: [], lost: open },
        seq,
      ),
      askMs,
      () => ({ type: 'Closed', gateway, requests: open.length }),
      (error) => ({ type: 'NotClosed', gateway, error }),
    );
  }

  function finished(state: JournalState, ctx: C): void {
    if (state.done === undefined || state.writing) return;
    if (state.ended.length > 0) flush(state, ctx);
    else ctx.tell(state.done, { type: 'Done' });
  }

  return {
    name: 'journal',
    capacity: 100_000,
    start(ctx) {
      ctx.after(config.graceMs, { type: 'Look' });
      return {
        open: new Map(),
        fresh: new Map(),
        ended: [],
        dropped: 0,
        seq: 0,
        writing: false,
        scheduled: false,
        living: new Set([config.gateway]),
        looking: true,
        done: undefined,
      };
    },
    handle(state, message, ctx) {
      switch (message.type) {
        case 'Accepted':
          state.open.set(message.entry.req, message.entry);
          state.fresh.set(message.entry.req, message.entry);
          later(state, ctx);
          break;
        case 'Ended': {
          const label = state.open.get(message.end.req)?.label;
          state.open.delete(message.end.req);
          state.fresh.delete(message.end.req);
          state.ended.push(label === undefined ? message.end : { ...message.end, label });
          bound(state);
          later(state, ctx);
          break;
        }
        case 'Flush':
          state.scheduled = false;
          flush(state, ctx);
          break;
        case 'Written':
          state.writing = false;
          state.seq = message.seq;
          if (state.dropped > 0) ctx.log.warn('the journal misses ends', { ends: state.dropped });
          state.dropped = 0;
          if (state.ended.length > 0 || state.fresh.size > 0) later(state, ctx);
          finished(state, ctx);
          break;
        case 'NotWritten':
          notWritten(state, message, ctx);
          break;
        case 'Overtaken':
          state.writing = false;
          state.seq = message.seq;
          ctx.log.warn('journal was written by another', { seq: message.seq, open: state.open.size });
          flush(state, ctx);
          break;
        case 'GatewaySeen':
          state.living.add(message.incarnation);
          break;
        case 'GatewayGone':
          state.living.delete(message.incarnation);
          if (message.incarnation !== config.gateway) look(message.incarnation, ctx);
          break;
        case 'Look':
          state.looking = false;
          look(undefined, ctx);
          break;
        case 'Found':
          for (const last of message.last) {
            if (last.record.open.length > 0 && !state.living.has(last.record.gateway)) close(last, ctx);
          }
          break;
        case 'NotFound':
          lookAgain(state, ctx);
          break;
        case 'Closed':
          ctx.log.info('closed the journal of a gateway that died', {
            gateway: message.gateway,
            requests: message.requests,
          });
          break;
        case 'NotClosed':
          // A conflict: another was faster, or the gateway lives.
          if (codeOf(message.error) !== 'NET_CONFLICT') lookAgain(state, ctx);
          break;
        case 'Finish':
          state.done = message.done;
          finished(state, ctx);
          break;
      }
      return state;
    },
    /** The books are for people: whatever is wrong with them costs no client its answer. */
    about: () => 'books',
    contain(state, _message, _failures, _error, ctx) {
      state.writing = false;
      state.scheduled = false;
      later(state, ctx, againMs);
      return 'drop';
    },
  };
}
