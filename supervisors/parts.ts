/** What a node is made of, for whoever builds one without operating-system processes: the simulator. */
export { createSupervisor, type Running, type Supervisor } from './otp/index.js';
export { type GatewayActors, startGatewayActors } from './trees/gateway-actors.js';
export { openTurns } from './trees/turns.js';
export { startWorkerActors, type WorkerActors } from './trees/worker-actors.js';
