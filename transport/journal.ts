/**
 * The journal: what a gateway has accepted and how it ended, so that another gateway can close the books of one that died (design 5.1).
 * One subject per gateway, one record per flush. Every record names all requests that are open, so the last one says everything; whoever
 * writes says which record he saw last, so two writers cannot both close it.
 */
import Type, { type Static } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Bus } from './bus.js';
import { decodeCbor, encodeCbor } from './envelope.js';
import { NetError } from './errors.js';
import { payloadBytes } from './limits.js';
import { subjects } from './subjects.js';

const Text = Type.String({ maxLength: 256 });
const Count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

/** What its client calls the request (`x-request-id`). */
const label = Type.Optional(Text);
const JournalEntry = Type.Object({ req: Text, model: Text, promptTokens: Count, label });
export type JournalEntry = Static<typeof JournalEntry>;

const JournalEnd = Type.Object({
  req: Text,
  outcome: Text,
  code: Text,
  attempts: Count,
  promptTokens: Count,
  completionTokens: Count,
  label,
  /** Milliseconds from accept to the last dispatch, to the first token (-1: there was none) and to the end. */
  queueMs: Type.Optional(Type.Number()),
  ttftMs: Type.Optional(Type.Number()),
  totalMs: Type.Optional(Type.Number()),
});
export type JournalEnd = Static<typeof JournalEnd>;

const JournalRecord = Type.Object({
  v: Type.Literal(1),
  gateway: Text,
  /** Who wrote it: the gateway itself, or the one that closed its books. */
  by: Text,
  /** Wall clock, for people. */
  at: Type.Number(),
  /** Every request between accept and end. */
  open: Type.Array(Text, { maxItems: 65_536 }),
  /** New among them since the last record. */
  accepted: Type.Array(JournalEntry, { maxItems: 65_536 }),
  /** Those that ended since; one that began since then too is only here. */
  ended: Type.Array(JournalEnd, { maxItems: 65_536 }),
  /** Failed with gateway_lost: their gateway died. */
  lost: Type.Array(Text, { maxItems: 65_536 }),
});
export type JournalRecord = Static<typeof JournalRecord>;

export interface LastRecord {
  readonly record: JournalRecord;
  /** What `append` wants as `after`. */
  readonly seq: number;
}

export interface Journal {
  /**
   * Resolves with the record's number. `after`: the number of the gateway's last record as the writer knows it, 0 for none. Rejects with
   * NET_CONFLICT if there is a later one, NET_TOO_LARGE, and whatever keeps a message from being stored.
   */
  append(record: JournalRecord, after: number): Promise<number>;
  /** The last record of one gateway, or of each. What cannot be read is left out. */
  last(gateway?: string): Promise<LastRecord[]>;
}

const storeMs = 3_000;
const check = Compile(JournalRecord);
let ordinal = 0;

export function openJournal(bus: Bus): Journal {
  const s = subjects(bus.namespace);
  return {
    append(record, after) {
      const subject = s.journal(record.gateway);
      const bytes = encodeCbor(record);
      if (bytes.length > payloadBytes - 1_024) {
        return Promise.reject(
          new NetError('NET_TOO_LARGE', { bytes: bytes.length, limit: payloadBytes, what: subject }),
        );
      }
      ordinal += 1;
      return bus.store(subject, bytes, `${subject}:${record.by}:${record.at}:${ordinal}`, storeMs, { after });
    },
    async last(gateway) {
      const stored = await bus.latest('JOURNAL', gateway === undefined ? s.all('journal') : s.journal(gateway));
      return stored.flatMap(({ data, seq }) => {
        const record = decodeJournal(data);
        return record === undefined ? [] : [{ record, seq }];
      });
    },
  };
}

/** Undefined: no record, or of another version. */
export function decodeJournal(bytes: Uint8Array): JournalRecord | undefined {
  try {
    const value = decodeCbor(bytes);
    return check.Check(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
