import type { Component } from './address.js';
import type { Bus } from './bus.js';
import { encodeCbor } from './envelope.js';
import { payloadBytes } from './limits.js';
import { subjects } from './subjects.js';

/** What could not be handled, as stored in DEAD. */
export interface DeadMail {
  readonly v: 1;
  readonly code: string;
  readonly detail: string;
  /** Where it was: subject, and the stream's sequence (0 for what no stream holds). */
  readonly subject: string;
  readonly seq: number;
  readonly attempt: number;
  /** Wall clock, for people. */
  readonly at: number;
  /** Size of the original; `bytes` holds less of it only if it alone would fill a payload. */
  readonly size: number;
  readonly bytes: Uint8Array;
}

const inFlightMax = 64;
const roomForRest = 4096;
const inFlight = new WeakMap<Bus, number>();
let ordinal = 0;

/**
 * Copies a message to DEAD. Never throws and never waits: at most 64 letters of one bus are on their way, and beyond that, or
 * while the broker is away, a letter is lost; returns false then.
 */
export function deadLetter(bus: Bus, component: Component, letter: Omit<DeadMail, 'v' | 'at' | 'size'>): boolean {
  const waiting = inFlight.get(bus) ?? 0;
  if (waiting >= inFlightMax || bus.state !== 'up') return false;
  inFlight.set(bus, waiting + 1);
  const done = () => inFlight.set(bus, (inFlight.get(bus) ?? 1) - 1);
  const at = bus.clock.wallTime();
  const mail: DeadMail = {
    ...letter,
    v: 1,
    at,
    detail: letter.detail.slice(0, 1000),
    size: letter.bytes.length,
    bytes: letter.bytes.subarray(0, payloadBytes - roomForRest),
  };
  ordinal += 1;
  const id = `${letter.subject}:${letter.seq}:${letter.seq === 0 ? `${at}.${ordinal}` : letter.code}`;
  bus.store(subjects(bus.namespace).dead(component), encodeCbor(mail), id, 5_000).then(done, done);
  return true;
}
