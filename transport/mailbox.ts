import { type Address, parts } from './address.js';
import type { Bus, Stop, Stored } from './bus.js';
import { createAssembler, isChunk, manifestOf } from './chunks.js';
import { deadLetter } from './dead-letters.js';
import { checkEnvelope, decodeCbor, encodeEnvelope, type Fault, fits } from './envelope.js';
import { payloadBytes } from './limits.js';
import { carriers } from './messages.js';
import type { Envelope } from './post.js';
import { subjects } from './subjects.js';

export interface MailboxOptions {
  /** Told of everything that did not reach the handler; for logs and metrics. */
  readonly onDropped?: (code: string, detail: string) => void;
}

export interface Mailbox {
  readonly stop: Stop;
  readonly counters: {
    readonly delivered: number;
    readonly duplicates: number;
    readonly expired: number;
    readonly malformed: number;
    readonly failed: number;
  };
}

/** Most senders remembered for dropping repeats; the one silent for longest is forgotten first. */
const sendersMax = 4_096;

/**
 * Reads the mail of one incarnation, from its first message on: in `seq` order per sender, repeats dropped, `budgetMs` less the time
 * that it waited. What is malformed or of an unknown type, for another incarnation or an actor that is not here, goes to DEAD; that
 * and mail whose budget ran out is answered with Refused if it names a gateway, before anything is computed. The handler is
 * synchronous; if it throws the message goes to DEAD and reading continues.
 */
export async function openMailbox(
  bus: Bus,
  of: Address,
  handler: (mail: Envelope) => void,
  options: MailboxOptions = {},
): Promise<Mailbox> {
  const { component, incarnation } = parts(of);
  const counters = { delivered: 0, duplicates: 0, expired: 0, malformed: 0, failed: 0 };
  const lastSeq = new Map<string, number>();
  const assembler = createAssembler(bus.clock);

  function dropped(code: string, detail: string): void {
    try {
      options.onDropped?.(code, detail);
    } catch {
      // A reporter that fails must not end the reader.
    }
  }

  function bury(stored: Stored, code: string, detail: string, attempt: number): void {
    deadLetter(bus, component, { code, detail, subject: stored.subject, seq: stored.seq, attempt, bytes: stored.data });
    dropped(code, detail);
  }

  function reject(stored: Stored, fault: Fault, value?: unknown): void {
    counters.malformed += 1;
    bury(stored, fault.code, fault.detail, 0);
    refuse(bus, of, fault, value);
  }

  function repeated(from: string, seq: number): boolean {
    const last = lastSeq.get(from);
    if (last !== undefined && seq <= last) return true;
    lastSeq.delete(from);
    lastSeq.set(from, seq);
    if (lastSeq.size > sendersMax) lastSeq.delete(lastSeq.keys().next().value as string);
    return false;
  }

  function read(stored: Stored): void {
    if (stored.data.length > payloadBytes) {
      reject(stored, { code: 'NET_TOO_LARGE', detail: `${stored.data.length} bytes` });
      return;
    }
    let value: unknown;
    try {
      value = decodeCbor(stored.data);
    } catch (error) {
      reject(stored, { code: 'NET_MALFORMED', detail: `not CBOR: ${String(error)}` });
      return;
    }
    if (isChunk(value)) {
      const fault = assembler.add(value);
      if (fault !== undefined) reject(stored, { code: 'NET_INCOMPLETE', detail: fault });
      return;
    }
    const manifest = manifestOf(value);
    if (manifest !== undefined) {
      const fault = assemble(value as { id?: unknown; body?: unknown }, manifest);
      if (fault !== undefined) {
        reject(stored, { code: 'NET_INCOMPLETE', detail: fault }, value);
        return;
      }
    }
    const decoded = checkEnvelope(value);
    if (decoded.ok) deliver(stored, decoded.envelope);
    else reject(stored, decoded.fault, value);
  }

  /** Puts the body in its place. A string says why it cannot. */
  function assemble(value: { id?: unknown; body?: unknown }, manifest: NonNullable<ReturnType<typeof manifestOf>>) {
    if (typeof manifest === 'string') return manifest;
    const body = assembler.take(String(value.id), manifest);
    if (typeof body === 'string') return body;
    try {
      value.body = decodeCbor(body);
      return undefined;
    } catch (error) {
      return `body is not CBOR: ${String(error)}`;
    }
  }

  function deliver(stored: Stored, mail: Envelope): void {
    if (carriers[mail.type] !== 'command') {
      reject(stored, { code: 'NET_MALFORMED', detail: `${mail.type} is no command` });
      return;
    }
    if (mail.to !== of) {
      const code = parts(mail.to).incarnation === incarnation ? 'WRK_UNKNOWN_ACTOR' : 'WRK_WRONG_INCARNATION';
      const detail = `${mail.type} is for ${mail.to}`;
      counters.malformed += 1;
      bury(stored, code, detail, mail.attempt);
      refuse(bus, of, { code, detail, from: mail.from, id: mail.id }, mail);
      return;
    }
    if (repeated(mail.from, mail.seq)) {
      counters.duplicates += 1;
      return;
    }
    if (stored.ageMs > mail.budgetMs) {
      counters.expired += 1;
      const detail = `${mail.type} ${mail.id}: ${Math.round(stored.ageMs)} of ${Math.round(mail.budgetMs)} ms`;
      dropped('NET_EXPIRED', detail);
      refuse(bus, of, { code: 'WRK_EXPIRED', detail, from: mail.from, id: mail.id }, mail);
      return;
    }
    try {
      handler({ ...mail, budgetMs: mail.budgetMs - stored.ageMs });
      counters.delivered += 1;
    } catch (error) {
      counters.failed += 1;
      bury(stored, 'NET_HANDLER', error instanceof Error ? error.message : String(error), mail.attempt);
    }
  }

  const stop = await bus.follow('MAIL', subjects(bus.namespace).mailOf(component, incarnation), 'start', read);
  return { stop, counters };
}

type Refusal = Pick<Fault, 'detail' | 'from' | 'id'> & { readonly code: string };

/** Tells the gateway that a malformed command names, so that its request need not wait for a deadline. */
function refuse(bus: Bus, self: Address, fault: Refusal, value: unknown): void {
  const { component, incarnation } = parts(self);
  if (component !== 'prefill' && component !== 'decode') return;
  const mail = value as { body?: { reply?: { gateway?: unknown; num?: unknown } }; req?: unknown; attempt?: unknown };
  const reply = mail?.body?.reply;
  const body = {
    num: reply?.num as number,
    leg: component,
    worker: incarnation,
    code: fault.code,
    message: fault.detail.slice(0, 2000),
  } as const;
  if (typeof fault.from !== 'string' || typeof reply?.gateway !== 'string' || !fits('Refused', body)) return;
  try {
    const s = subjects(bus.namespace);
    bus.send(
      s.out(reply.gateway),
      encodeEnvelope({
        v: 1,
        type: 'Refused',
        id: `${self}:refused:${fault.id ?? ''}`.slice(0, 256),
        from: self,
        to: `gateway.${reply.gateway}.frontend` as Address,
        seq: 0,
        req: typeof mail.req === 'string' ? mail.req.slice(0, 128) : '',
        attempt: Number.isSafeInteger(mail.attempt) && (mail.attempt as number) >= 0 ? (mail.attempt as number) : 0,
        budgetMs: 0,
        ts: bus.clock.wallTime(),
        body,
      }),
    );
  } catch {
    // `reply.gateway` is no subject token: there is nobody to tell.
  }
}
