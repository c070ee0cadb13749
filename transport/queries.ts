import { type Address, parts } from './address.js';
import type { Bus, Stop } from './bus.js';
import { deadLetter } from './dead-letters.js';
import { decodeCbor, decodeEnvelope, encodeCbor, type Fault, fits } from './envelope.js';
import { isNetError, NetError } from './errors.js';
import { payloadBytes } from './limits.js';
import type { Body, MessageType } from './messages.js';
import type { Envelope } from './post.js';
import { subjects } from './subjects.js';

/** How a served query is answered: synchronously, reading state and changing none. A throw becomes a typed refusal. */
export type QueryHandlers = {
  readonly [T in MessageType]?: {
    readonly [R in MessageType]: { readonly answer: R; handle(question: Envelope<T>): Body<R> | Promise<Body<R>> };
  }[MessageType];
};

interface Handler {
  readonly answer: MessageType;
  handle(question: Envelope): unknown;
}

/** Answers queries to one address. Malformed and unknown questions get a typed refusal and a copy in DEAD. */
export function serveQueries(bus: Bus, of: Address, handlers: QueryHandlers): Stop {
  const { component } = parts(of);
  const subject = subjects(bus.namespace).query(of);

  function refuse(bytes: Uint8Array, fault: Pick<Fault, 'detail'> & { code: string }): Uint8Array {
    deadLetter(bus, component, { ...fault, subject, seq: 0, attempt: 0, bytes });
    return encodeCbor({ v: 1, type: 'Refusal', code: fault.code, message: fault.detail.slice(0, 500) });
  }

  return bus.serve(subject, async (bytes) => {
    const decoded = decodeEnvelope(bytes);
    if (!decoded.ok) return refuse(bytes, decoded.fault);
    const question = decoded.envelope;
    const handler = handlers[question.type] as Handler | undefined;
    if (!handler) return refuse(bytes, { code: 'NET_UNKNOWN_TYPE', detail: question.type });
    try {
      const body = await handler.handle(question);
      const answer = encodeCbor({ v: 1, type: handler.answer, body });
      if (answer.length <= payloadBytes) return answer;
      return refuse(bytes, { code: 'NET_TOO_LARGE', detail: `an answer of ${answer.length} bytes` });
    } catch (error) {
      return refuse(bytes, { code: 'NET_HANDLER', detail: error instanceof Error ? error.message : String(error) });
    }
  });
}

/** One question, one checked answer. Rejects with NET_TIMEOUT, NET_NO_RESPONDER, NET_DOWN, NET_REFUSED or NET_MALFORMED. */
export async function askOnce<R extends MessageType>(
  bus: Bus,
  subject: string,
  question: Uint8Array,
  answer: R,
  timeoutMs: number,
): Promise<Body<R>> {
  if (question.length > payloadBytes) {
    throw new NetError('NET_TOO_LARGE', { bytes: question.length, limit: payloadBytes, what: subject });
  }
  const bytes = await bus.request(subject, question, timeoutMs);
  if (bytes.length > payloadBytes) throw new NetError('NET_MALFORMED', { what: `answer of ${bytes.length} bytes` });
  const value = answerOf(bytes);
  if (value.type === 'Refusal') throw new NetError('NET_REFUSED', { what: `${value.code}: ${value.message}` });
  if (value.type !== answer || !fits(answer, value.body)) {
    throw new NetError('NET_MALFORMED', { what: `answer is not a valid ${answer}` });
  }
  return value.body;
}

function answerOf(bytes: Uint8Array): { type?: unknown; code?: unknown; message?: unknown; body?: unknown } {
  try {
    const value = decodeCbor(bytes);
    if (typeof value === 'object' && value !== null) return value;
    throw new NetError('NET_MALFORMED', { what: 'answer is not a map' });
  } catch (error) {
    if (isNetError(error)) throw error;
    throw new NetError('NET_MALFORMED', { what: 'answer is not CBOR' }, error);
  }
}
