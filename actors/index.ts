/** Actors: the kernel they run on, and one folder per role. */
export type {
  Behaviour,
  Ctx,
  DeadLetter,
  ExitReason,
  Kernel,
  Log,
  Recorder,
  Ref,
  TimerId,
  World,
} from './kernel/contract.js';
export type { Dispatcher, Runnable } from './kernel/dispatcher.js';
export { ActorError, type ActorErrorCode, actorErrors } from './kernel/errors.js';
export { createKernel, type KernelOptions } from './kernel/kernel.js';
export { nactDispatcher } from './kernel/nact-dispatcher.js';
export { type SeededDispatcher, seededDispatcher } from './kernel/seeded-dispatcher.js';
export { type SystemWorldOptions, systemWorld } from './kernel/system-world.js';
export {
  type LogLine,
  type Posted,
  seededRandom,
  type VirtualWorld,
  type VirtualWorldOptions,
  virtualWorld,
} from './kernel/virtual-world.js';
