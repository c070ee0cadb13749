/** Supervision with OTP's semantics, for actors and processes alike. */
export { type ActorChild, actorChild } from './actor-child.js';
export type { Child, ChildSpec, ChildState, ChildStatus, RestartType, Running, Shutdown } from './child.js';
export type { Clock } from './clock.js';
export type { AutoShutdown, Backoff, Strategy } from './decisions.js';
export type { SupervisionErrorCode } from './errors.js';
export type { SupervisorOptions } from './options.js';
export { createSupervisor, type Supervisor } from './supervisor.js';
