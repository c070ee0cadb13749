import type { ExitReason, Ref } from './contract.js';
import { ActorError } from './errors.js';
import type { Owed } from './owed.js';

/** Whatever a Ref is underneath: an actor, or the place where one answer goes. */
export abstract class Target implements Ref<never> {
  /** Exists for the compiler only. */
  declare readonly __accepts: (message: never) => void;

  constructor(
    readonly path: string,
    readonly incarnation: number,
  ) {}

  /** False if the message became a dead letter. */
  abstract accept(message: unknown): boolean;

  /** `owed` is paid with this actor's exit reason, at once if it has ended. */
  watchedBy(_owed: Owed, _message: (reason: ExitReason) => unknown): void {
    throw new ActorError('ACT_FOREIGN_REF', [this.path]);
  }
}

export function target(of: Ref<never>): Target {
  if (of instanceof Target) return of;
  throw new ActorError('ACT_FOREIGN_REF', [String((of as { readonly path?: unknown } | undefined)?.path)]);
}
