/** Bugs on purpose: what the simulator must find. A mutation changes what actors do, or what they send, of every process alike. */
import type { Behaviour, Ctx } from '../../actors/index.js';
import type { PostOffice } from '../../transport/index.js';

export interface Mutation {
  /** Undefined: this one stays as it is. */
  behaviour?<M, S>(behaviour: Behaviour<M, S>): Behaviour<M, S> | undefined;
  post?(post: PostOffice): PostOffice;
  /** In place of fresh request ids. */
  ids?: () => string;
  /** Incarnations stay the same over restarts. */
  readonly sameIncarnation?: boolean;
}

type Message = { readonly type: string };

/** Messages of one actor that are swallowed, or changed, before they are handled. */
export function tamper(
  actor: string,
  type: string,
  change: (message: never, ctx: Ctx<unknown>) => unknown,
): Mutation['behaviour'] {
  return <M, S>(behaviour: Behaviour<M, S>): Behaviour<M, S> | undefined => {
    if (behaviour.name !== actor) return undefined;
    return {
      ...behaviour,
      handle(state, message, ctx) {
        if ((message as Message).type !== type) return behaviour.handle(state, message, ctx);
        const changed = change(message as never, ctx as Ctx<unknown>);
        return changed === undefined ? state : behaviour.handle(state, changed as M, ctx);
      },
    };
  };
}
