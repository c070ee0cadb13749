/**
 * Proves that a connection answers. A frozen broker keeps its sockets open, and a network that swallows packets says nothing either, so
 * only a question that stays unanswered tells. Two steps: silent, which may pass and loses nothing, and given up.
 */
import type { NatsConnection } from '@nats-io/transport-node';
import type { Stop } from '../bus.js';

export interface WatchdogEvents {
  /** The connection is broken already: there is nothing to judge. */
  broken(): boolean;
  /** A question has had no answer for `silentMs`. */
  silent(): void;
  /** The answer came after all. */
  heard(): void;
  /** No answer for `patience` times as long. */
  givenUp(ms: number): void;
  /** Four times per `silentMs`; must not throw. */
  look(): void;
}

const looks = 4;
const patience = 3;

export function watchConnection(nc: NatsConnection, silentMs: number, events: WatchdogEvents): Stop {
  const lookMs = silentMs / looks;
  /** When the ping that has no answer yet was sent. */
  let asked: number | undefined;
  let pings = 0;
  /** Messages received by the last look. What comes by itself is an answer, too: a connection that is in use is not asked. */
  let received = 0;
  let silent = false;
  let lastLook = performance.now();

  function ping(now: number): void {
    const mine = ++pings;
    asked = now;
    nc.rtt().then(
      () => {
        if (mine !== pings) return;
        asked = undefined;
        if (silent) events.heard();
        silent = false;
      },
      () => {},
    );
  }

  function heardSomething(): boolean {
    const { inMsgs } = nc.stats();
    const more = inMsgs !== received;
    received = inMsgs;
    return more;
  }

  function judge(now: number, late: boolean): void {
    if (events.broken()) {
      asked = undefined;
      pings += 1;
      silent = false;
    } else if (asked === undefined) {
      if (!heardSomething()) ping(now);
    } else if (heardSomething() || late) {
      // A pong may wait behind a backlog, and whoever stood still himself has heard nothing either.
      asked = now;
    } else if (now - asked >= silentMs * patience) events.givenUp(now - asked);
    else if (now - asked >= silentMs && !silent) {
      silent = true;
      events.silent();
    }
    events.look();
  }

  const timer = setInterval(() => {
    const now = performance.now();
    const late = now - lastLook > 2 * lookMs;
    lastLook = now;
    // Something came meanwhile and nothing is asked: there is nothing to judge, and an idle process is spared two turns.
    if (asked === undefined && !events.broken() && heardSomething()) return events.look();
    // After a freeze of our own, timers run before the socket's backlog is read: let the answer in first.
    setImmediate(() => setImmediate(() => judge(now, late)));
  }, lookMs);
  timer.unref();
  return () => clearInterval(timer);
}
