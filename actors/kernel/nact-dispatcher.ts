/**
 * The only file that knows nact. One nact actor stands for the whole kernel; a message to it means "take a turn". In a turn every
 * waiting actor runs, also those that only began to wait in it, so that a message which passes several actors of a process costs one
 * round of the event loop, and everything that they publish leaves in one write. A turn is bounded in time and I/O is polled between
 * turns: a long mailbox starves neither its neighbours nor the sockets. nact's supervision, mailboxes and names are not used: a
 * reset runs two messages of one actor at once, and an old reference reaches the new incarnation.
 */
import * as nact from 'nact';
import type { Dispatcher, Runnable } from './dispatcher.js';

/** Messages of one actor at a time. Measured: 64 carry more than a million messages a second to one actor. */
const batch = 64;
/** No actor runs any more in a turn that has lasted this long. */
const turnMs = 2;
/** The same for a clock that stands still. */
const turnRuns = 1024;

export function nactDispatcher(now: () => number): Dispatcher {
  const system = nact.start();
  /** In the order of their turns: a set gives out what is added while it is walked. */
  const waiting = new Set<Runnable>();
  /** A turn is on its way or under way. */
  let coming = false;
  let closed = false;

  const turn: nact.Ref<undefined> = nact.spawn(
    system,
    () => {
      const until = now() + turnMs;
      let runs = 0;
      for (const actor of waiting) {
        waiting.delete(actor);
        try {
          if (actor.run(batch)) waiting.add(actor);
        } catch (error) {
          // What behaviours throw ends their actors. This is the kernel's own: nact would stop the one turn of all actors, and say nothing.
          queueMicrotask(() => {
            throw error;
          });
        }
        if (++runs >= turnRuns || now() >= until) break;
      }
      coming = waiting.size > 0 && !closed;
      if (coming) nact.dispatch(turn, undefined);
    },
    'turn',
  );

  return {
    schedule(actor) {
      if (closed) return;
      waiting.add(actor);
      if (coming) return;
      coming = true;
      nact.dispatch(turn, undefined);
    },
    forget(actor) {
      waiting.delete(actor);
    },
    close() {
      if (closed) return;
      closed = true;
      waiting.clear();
      nact.stop(system);
    },
  };
}
