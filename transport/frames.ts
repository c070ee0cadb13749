import { type Address, parts } from './address.js';
import type { Bus, Stop } from './bus.js';
import { deadLetter } from './dead-letters.js';
import { decodeEnvelope } from './envelope.js';
import { payloadBytes } from './limits.js';
import { type Body, carriers } from './messages.js';
import type { Envelope, StepFrame } from './post.js';
import { decodeStep, isStepFrame } from './step-frame.js';
import { type FrameKind, subjects } from './subjects.js';

export interface FrameHandlers {
  /** Step frames arrive on `out` alone. */
  step?(frame: StepFrame): void;
  message?(envelope: Envelope): void;
}

export interface FrameListener {
  readonly stop: Stop;
  readonly counters: { readonly received: number; readonly malformed: number; readonly failed: number };
}

/**
 * Hears the frames of one kind: `out` and `ack` those meant for `self`, the others those of everybody. Handlers are synchronous; a
 * throw is counted and copied to DEAD, and so is what is malformed.
 */
export function listenFrames(bus: Bus, kind: FrameKind, self: Address, handlers: FrameHandlers): FrameListener {
  const { component, incarnation } = parts(self);
  const s = subjects(bus.namespace);
  const filter = {
    out: () => s.out(incarnation),
    ack: () => s.ack(component, incarnation),
    load: s.load,
    down: s.down,
    replica: s.replica,
  };
  const counters = { received: 0, malformed: 0, failed: 0 };

  function bury(subject: string, bytes: Uint8Array, code: string, detail: string): void {
    deadLetter(bus, component, { code, detail, subject, seq: 0, attempt: 0, bytes });
  }
  function reject(subject: string, bytes: Uint8Array, code: string, detail: string): void {
    counters.malformed += 1;
    bury(subject, bytes, code, detail);
  }

  const stop = bus.subscribe(filter[kind](), (bytes, subject) => {
    counters.received += 1;
    if (bytes.length > payloadBytes) return reject(subject, bytes, 'NET_TOO_LARGE', `${bytes.length} bytes`);
    try {
      if (kind === 'out' && isStepFrame(bytes)) {
        const frame = decodeStep(bytes);
        if (typeof frame === 'string') return reject(subject, bytes, 'NET_MALFORMED', frame);
        handlers.step?.(frame);
        return;
      }
      const decoded = decodeEnvelope(bytes);
      if (!decoded.ok) return reject(subject, bytes, decoded.fault.code, decoded.fault.detail);
      const carrier = carriers[decoded.envelope.type];
      if (carrier !== (kind === 'out' || kind === 'ack' ? 'frame' : 'telemetry')) {
        return reject(subject, bytes, 'NET_MALFORMED', `${decoded.envelope.type} does not travel on ${kind}`);
      }
      if (!speaksFor(subject, decoded.envelope, self)) {
        return reject(subject, bytes, 'NET_MALFORMED', `${decoded.envelope.type} of another on ${kind}`);
      }
      handlers.message?.(decoded.envelope);
    } catch (error) {
      counters.failed += 1;
      bury(subject, bytes, 'NET_HANDLER', error instanceof Error ? error.message : String(error));
    }
  });
  return { stop, counters };
}

/** A frame is for the one it names, and nobody reports for an incarnation on another's subject. */
function speaksFor(subject: string, { type, from, to, body }: Envelope, self: Address): boolean {
  if (type === 'Load' || type === 'Down') return subject.endsWith(`.${(body as Body<'Load' | 'Down'>).incarnation}`);
  if (type === 'Replica') return subject.endsWith(`.${parts(from).component}.${parts(from).incarnation}`);
  const [want, have] = [parts(self), parts(to)];
  return want.component === have.component && want.incarnation === have.incarnation;
}
