/** Actors: the kernel they run on, and one folder per role. */

export { type BeaconMessage, beaconActor } from './beacon/beacon.js';
export { decodeActor } from './decode/decode.js';
export type { PrefillQueue } from './decode/offers.js';
export { frontendActor } from './frontend/frontend.js';
export type {
  AnswerShape,
  Api,
  ClientStream,
  Detokenizer,
  DetokenizerFactory,
  DryRunAnswer,
  FinishReason,
  FrontendRequest,
  Prepared,
  Preprocessor,
  RequestError,
  RequestSummary,
  RoutingHints,
  TokenLogprob,
  Usage,
} from './frontend/ports.js';
export type { FrontendConfig, FrontendFacts, FrontendMessage, FrontendPorts } from './frontend/state.js';
export { type GpuMessage, type GpuNews, gpuActor } from './gpu/gpu.js';
export { type JournalMessage, journalActor } from './journal/journal.js';
export type {
  Behaviour,
  Ctx,
  DeadLetter,
  ExitReason,
  Kernel,
  Log,
  Ref,
  TimerId,
  World,
} from './kernel/contract.js';
export type { Dispatcher, Runnable } from './kernel/dispatcher.js';
export type { ActorErrorCode } from './kernel/errors.js';
export { idSource } from './kernel/id.js';
export { createKernel, type KernelOptions } from './kernel/kernel.js';
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
export { prefillActor } from './prefill/prefill.js';
export type { JobSource } from './prefill/takes.js';
export { isFull, meaningOf, type RefusalCode, type RefusalMeaning } from './refusals.js';
export { type RegistryMessage, registryActor } from './registry/registry.js';
export { countStandstill } from './registry/standstill.js';
export type { Outcome, RouteWishes } from './router/choose.js';
export { costConfig } from './router/cost.js';
export {
  type DecodeFirstConfig,
  type DisaggRouting,
  decodeFirstConfig,
  disaggRouting,
} from './router/disagg.js';
export type { DryRunOutcome, RouterFacts, RouterMessage } from './router/messages.js';
export { oneClass, type QueueConfig, queueConfig } from './router/queue.js';
export type { RouteRecord } from './router/route-log.js';
export {
  decideAgain,
  decodeRoutes,
  encodeRoutes,
  type RouteBatch,
  type RouteTape,
  routeBatchBytes,
} from './router/route-tape.js';
export { routerActor } from './router/router.js';
export { explained, type SelectionMode } from './router/select.js';
export type { RouterConfig } from './router/state.js';
export type { RouterTuning } from './router/tuning.js';
export { recorded, type Tape } from './tape/recording.js';
export { type Rerun, rerun, shownOutput, toldAs } from './tape/replaying.js';
export { decodeTurn, type Entry, encodeTurn, type Output, type RawEntry, type Turn } from './tape/turn.js';
export type { WorkerConfig, WorkerFacts, WorkerMessage } from './worker/contract.js';
