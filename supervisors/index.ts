/** Supervision, configuration and the trees that make a node. What only a running node needs is loaded when it starts. */
export type { GatewayBoot, ListenHandle, ModelFile, NatsLogin, RunningTree, WorkerBoot } from './boot.js';
export { type ConfigSources, type Configuration, presentable, resolveConfig } from './config.js';
export { type ResolvedConfig, type Setting, settings } from './config-schema.js';
export { askRoute, askSettings, injectFault, nodeStatus, restartNode, stopNode } from './control.js';
export { describe, isSupervisorError, type SupervisorErrorCode } from './errors.js';
export type { Fault } from './faults.js';
export { type LogSink, logSink } from './log.js';
export { type ModelSource, modelSource, resolveModel } from './model.js';
export type { Node, NodeOptions } from './node.js';
export { packageRoot, packageVersion } from './package-root.js';
export type { RestartProgress, RestartRequest } from './restart.js';
export type { RouteAnswer, RouteQuestion, SettingQuestion } from './route-question.js';
export { lockHolder } from './state-dir.js';
export type { NodeStatus, ProcessStatus } from './status.js';
export { cacheFolder, resolveToolchain, type Toolchain } from './toolchain.js';

/** See `startNode` in node.ts. */
export async function startNode(options: import('./node.js').NodeOptions): Promise<import('./node.js').Node> {
  return (await import('./node.js')).startNode(options);
}

/** See `readRouteTape` in route-tape.ts. */
export async function readRouteTape(
  config: import('./config-schema.js').ResolvedConfig,
  id: string,
): Promise<readonly import('./route-question.js').RouteAnswer[]> {
  return (await import('./route-tape.js')).readRouteTape(config, id);
}

/** See `runRole` in role.ts. */
export async function runRole(role: import('./ipc.js').Role): Promise<void> {
  await (await import('./role.js')).runRole(role);
}

/** What only commands that read streams back need; see records/. */
export const recordParts = () => import('./records/index.js');
export type RecordParts = Awaited<ReturnType<typeof recordParts>>;

/** What only `dynact replay` needs; see replay/. */
export const replayParts = () => import('./replay/index.js');

/** See parts.ts. */
export const nodeParts = () => import('./parts.js');
export type NodeParts = Awaited<ReturnType<typeof nodeParts>>;
