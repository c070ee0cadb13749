/**
 * The only file that knows nact. Each actor of the kernel has a nact actor, made at its first message; a message to it
 * means "take a turn". nact gives every waiting actor one turn per round of the event loop, with I/O polled between
 * rounds, so a long mailbox starves neither its neighbours nor the sockets. Its supervision, its mailboxes and its
 * names are not used: a reset runs two messages of one actor at once, and an old reference reaches the new incarnation.
 */
import * as nact from 'nact';
import type { Dispatcher, Runnable } from './dispatcher.js';

/** Measured: 64 messages a turn carry more than a million messages a second to one actor, one a turn 0.3 million. */
const batch = 64;

export function nactDispatcher(): Dispatcher {
  const system = nact.start();
  const lanes = new Map<Runnable, nact.Ref<undefined>>();
  // Names are numbers of our own: nact's anonymous names are random and collide.
  let spawned = 0;
  let closed = false;

  const lane = (actor: Runnable): nact.Ref<undefined> => {
    const ref: nact.Ref<undefined> = nact.spawn(
      system,
      () => {
        if (actor.run(batch)) nact.dispatch(ref, undefined);
      },
      `lane-${++spawned}`,
    );
    lanes.set(actor, ref);
    return ref;
  };

  return {
    schedule(actor) {
      if (closed) return;
      nact.dispatch(lanes.get(actor) ?? lane(actor), undefined);
    },
    forget(actor) {
      const ref = lanes.get(actor);
      if (ref === undefined) return;
      lanes.delete(actor);
      nact.stop(ref);
    },
    close() {
      if (closed) return;
      closed = true;
      lanes.clear();
      nact.stop(system);
    },
  };
}
