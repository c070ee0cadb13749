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
