import type { Behaviour, Kernel, Ref } from '../../actors/index.js';
import type { Address } from '../../transport/index.js';
import type { Child } from './child.js';

export interface ActorChild<M> extends Child {
  /** The present life's mailbox; undefined while there is none. */
  readonly ref: Ref<M> | undefined;
}

/**
 * An actor as a supervised child: each life is a fresh behaviour from `behaviour`, at `address`. A throw in the
 * behaviour's start is a failed start. `spawned` hears of each new life before anybody else, to hand its Ref around.
 */
export function actorChild<M, S>(
  kernel: Kernel,
  behaviour: () => Behaviour<M, S>,
  address: Address,
  spawned: (ref: Ref<M>) => void = () => {},
): ActorChild<M> {
  let present: Ref<M> | undefined;
  return {
    get ref() {
      return present;
    },
    async start() {
      const ref = kernel.spawn(behaviour(), address);
      const failed = kernel.ended(ref);
      if (failed?.kind === 'error') throw failed.error;
      present = ref;
      const exit = kernel.exit(ref).then((reason) => {
        if (present === ref) present = undefined;
        return reason;
      });
      try {
        spawned(ref);
      } catch (thrown) {
        await kernel.kill(ref);
        throw thrown;
      }
      return {
        incarnation: `${address}#${ref.incarnation}`,
        exit,
        stop: (deadlineMs) => kernel.stop(ref, deadlineMs),
        kill: () => void kernel.kill(ref),
      };
    },
  };
}
