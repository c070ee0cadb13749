/** A set of actors on one dispatcher. */
import type { Address } from '../../transport/index.js';
import { ActorCell } from './actor-cell.js';
import type { Host } from './cell.js';
import type { Behaviour, DeadLetter, Kernel, Ref, World } from './contract.js';
import type { Dispatcher } from './dispatcher.js';
import { ActorError, asError } from './errors.js';
import { nactDispatcher } from './nact-dispatcher.js';
import { Target, target } from './target.js';

export interface KernelOptions {
  readonly world: World;
  /** Default nact. */
  readonly dispatcher?: Dispatcher;
}

/** The place where the answer to a question from outside goes. */
class PromiseTarget extends Target {
  answered = false;

  constructor(
    private readonly deadLetter: Host['deadLetter'],
    private readonly resolve: (reply: never) => void,
  ) {
    super('outside/reply', 0);
  }

  accept(message: unknown): boolean {
    if (this.answered) {
      this.deadLetter(this.path, message, 'stale');
      return false;
    }
    this.answered = true;
    this.resolve(message as never);
    return true;
  }
}

function actor(of: Ref<never>): ActorCell {
  if (of instanceof ActorCell) return of;
  throw new ActorError('ACT_FOREIGN_REF', [String((of as Ref<never> | undefined)?.path)]);
}

export function createKernel({ world, dispatcher = nactDispatcher(() => world.now()) }: KernelOptions): Kernel {
  const living = new Map<string, ActorCell>();
  const listeners = new Set<(letter: DeadLetter) => void>();
  const counters = { delivered: 0, deadLetters: 0, crashes: 0 };
  const log = world.log('kernel');
  let incarnations = 0;
  let closing: Promise<void> | undefined;

  const host: Host = {
    world,
    dispatcher,
    counters,
    log,
    deadLetter(to, message, reason, error) {
      counters.deadLetters++;
      const letter: DeadLetter = { to, message, reason, ...(error !== undefined && { error }) };
      for (const listener of listeners) {
        try {
          listener(letter);
        } catch (thrown) {
          log.error('dead letter listener failed', { to, reason, error: asError(thrown) });
        }
      }
    },
    lives: (path) => living.has(path),
    gone(ended) {
      if (living.get(ended.path) === ended) living.delete(ended.path);
    },
  };

  const youngestFirst = (): ActorCell[] => [...living.values()].reverse();

  const stopAll = async (): Promise<void> => {
    for (const each of youngestFirst()) {
      each.drain(Number.POSITIVE_INFINITY);
      await each.exit();
    }
    dispatcher.close();
  };

  return {
    counters,
    spawn<M, S>(behaviour: Behaviour<M, S>, address: Address): Ref<M> {
      if (closing !== undefined) throw new ActorError('ACT_KERNEL_DOWN', [address]);
      if (living.has(address)) throw new ActorError('ACT_NAME_TAKEN', [address]);
      const spawned = new ActorCell(host, behaviour as unknown as Behaviour<unknown, unknown>, address, ++incarnations);
      living.set(address, spawned);
      spawned.begin();
      return spawned as unknown as Ref<M>;
    },
    tell: (to, message) => target(to as Ref<never>).accept(message),
    ask<M, R>(to: Ref<M>, build: (replyTo: Ref<R>) => M, timeoutMs: number): Promise<R> {
      return new Promise<R>((resolve, reject) => {
        const reply = new PromiseTarget(host.deadLetter, (answer: R) => {
          cancel();
          resolve(answer);
        });
        const fail = (error: ActorError): void => {
          reply.answered = true;
          cancel();
          reject(error);
        };
        const cancel = world.setTimer(timeoutMs, () => fail(new ActorError('ACT_TIMEOUT', [to.path, timeoutMs])));
        try {
          if (target(to as Ref<never>).accept(build(reply as unknown as Ref<R>))) return;
        } catch (thrown) {
          cancel();
          throw thrown;
        }
        if (!reply.answered) fail(new ActorError('ACT_UNDELIVERED', [to.path, 'ended or full']));
      });
    },
    stop(of, deadlineMs) {
      actor(of).drain(deadlineMs);
      return actor(of).exit();
    },
    kill(of) {
      actor(of).endSoon({ kind: 'killed' });
      return actor(of).exit();
    },
    exit: (of) => actor(of).exit(),
    ended: (of) => actor(of).reason,
    depth: (of) => actor(of).depth,
    onDeadLetter(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    shutdown(deadlineMs) {
      closing ??= stopAll();
      if (deadlineMs === Number.POSITIVE_INFINITY) return closing;
      const cancel = world.setTimer(deadlineMs, () => {
        for (const each of youngestFirst()) each.endSoon({ kind: 'killed' });
      });
      return closing.finally(cancel);
    },
  };
}
