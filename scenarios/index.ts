/** Scenarios against real processes, the driver of such processes that benchmarks use as well, and the simulator for those who replay. */
export { type FaultNode, type NodeSettings, poll, portsServedBy, signal, startFaultNode } from './driver/node.js';
export { pauseAfter, reasons, settle } from './driver/outcome.js';
export { openStreams, type Stream, type Streams } from './driver/streams.js';
export { readSchedule, simulate } from './simulator/index.js';
export { readScenario, scenarioNames } from './story/library.js';
export { reportOf } from './story/report.js';
export { runScenario, type Verdict } from './story/run.js';
export { quietNode } from './story/steps.js';
