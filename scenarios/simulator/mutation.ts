/** Bugs on purpose: what the simulator must find. A mutation changes what actors do, or what they send, of every process alike. */
import type { Behaviour } from '../../actors/index.js';
import type { PostOffice } from '../../transport/index.js';

export interface Mutation {
  /** Undefined: this one stays as it is. */
  behaviour?<M, S>(behaviour: Behaviour<M, S>): Behaviour<M, S> | undefined;
  post?(post: PostOffice): PostOffice;
  /** Incarnations stay the same over restarts. */
  readonly sameIncarnation?: boolean;
}

type Command = Parameters<PostOffice['command']>;
type Frame = Parameters<PostOffice['frame']>;
interface Message {
  readonly type: string;
}

/** One type of message of one actor is changed before it is handled, or swallowed where `change` gives undefined. */
export function tamper(
  actor: string,
  type: string,
  change: (message: never, state: never) => unknown = () => undefined,
): Mutation {
  return {
    behaviour: (behaviour) => {
      if (behaviour.name !== actor) return undefined;
      return {
        ...behaviour,
        handle(state, message, ctx) {
          if ((message as Message).type !== type) return behaviour.handle(state, message, ctx);
          const changed = change(message as never, state as never);
          return changed === undefined ? state : behaviour.handle(state, changed as typeof message, ctx);
        },
      };
    },
  };
}

/** The same for what leaves a process. Commands that are swallowed count as stored. */
export function tamperPost(change: {
  readonly command?: (...sent: Command) => Command | undefined;
  readonly frame?: (...sent: Frame) => Frame | undefined;
}): Mutation {
  return {
    post: (post) => ({
      ...post,
      outbox: post.outbox,
      command: (...sent: Command) => {
        const changed = change.command === undefined ? sent : change.command(...sent);
        return changed === undefined ? Promise.resolve() : post.command(...changed);
      },
      frame: (...sent: Frame) => {
        const changed = change.frame === undefined ? sent : change.frame(...sent);
        if (changed !== undefined) post.frame(...changed);
      },
    }),
  };
}
