/** The deterministic simulator: see `simulation.ts`. */
export { type Mutation, tamper, tamperPost } from './mutation.js';
export { drawSchedule, type FaultKind, readSchedule, type Schedule } from './schedule.js';
export { shrink } from './shrink.js';
export { type SimulationOptions, type SimulationResult, simulate } from './simulation.js';
