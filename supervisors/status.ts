/** What `dynact status` shows. `--json` prints a NodeStatus as it is; new fields may come, none of these goes. */
import { readFileSync } from 'node:fs';
import type { ModelFile } from './boot.js';
import type { Broker } from './broker.js';
import type { ResolvedConfig } from './config-schema.js';
import type { Fleet } from './fleet.js';
import type { Facts, Role } from './ipc.js';
import type { ChildState, Supervisor } from './otp/index.js';
import { packageVersion } from './package-root.js';

export interface ProcessStatus {
  readonly role: Role | 'nats' | 'node';
  /** Stable over restarts, e.g. `decode-0`. */
  readonly instance: string;
  /** null while there is no process. */
  readonly pid: number | null;
  readonly state: ChildState;
  /** Lives after the first. */
  readonly restarts: number;
  /** '' while there is none. */
  readonly incarnation: string;
  /** How the last life ended; null while it is the first. */
  readonly lastReason: string | null;
  /** Time in `state`. */
  readonly stateMs: number;
  /** Lives and starts that failed in a row: more than one is a crash loop. 0 after a quiet time. */
  readonly failures: number;
  /** Until the next start, for a process in its back-off; else null. */
  readonly retryMs: number | null;
  /** Resident memory; 0 if unknown. */
  readonly rssBytes: number;
  /** What the role says of itself, e.g. { inFlight: 3 }. */
  readonly facts: Facts;
}

export interface NodeStatus {
  readonly node: string;
  readonly namespace: string;
  readonly version: string;
  readonly stateDir: string;
  /** '' on a node without gateways. */
  readonly url: string;
  readonly natsUrl: string;
  readonly model: string;
  readonly engine: string;
  readonly uptimeMs: number;
  /** Messages that could not be handled and are kept for people; null while the broker does not say. */
  readonly deadLetters: number | null;
  /** The node first, then in start order. */
  readonly processes: readonly ProcessStatus[];
}

/** Where a node's status is read from. */
export interface View {
  readonly config: ResolvedConfig;
  readonly model: ModelFile;
  readonly broker: Broker;
  readonly processes: Fleet;
  readonly tree: Supervisor;
  readonly self: string;
  readonly url: string;
  readonly startedAt: number;
  readonly stopping: boolean;
  readonly up: boolean;
}

export async function snapshot({
  config,
  model,
  broker,
  processes,
  tree,
  self,
  url,
  startedAt,
  stopping,
  up,
}: View): Promise<NodeStatus> {
  const deadLetters = await broker.deadLetters();
  const now = performance.now();
  const uptimeMs = Math.round(now - startedAt);
  const node: ProcessStatus = {
    role: 'node',
    instance: config.node.name,
    pid: process.pid,
    state: stopping ? 'draining' : up ? 'up' : 'starting',
    restarts: 0,
    incarnation: self,
    lastReason: null,
    stateMs: uptimeMs,
    failures: 0,
    retryMs: null,
    rssBytes: process.memoryUsage.rss(),
    facts: {},
  };
  const children = tree.status().map((child): ProcessStatus => {
    const member = processes.members.find(({ instance }) => instance === child.name);
    const seen = member?.process.snapshot();
    const last = seen ? seen.lastExit : broker.lastExit();
    return {
      role: member?.role ?? 'nats',
      instance: child.name,
      pid: (seen ? seen.pid : broker.pid()) ?? null,
      state: child.state === 'up' && seen?.draining ? 'draining' : child.state,
      restarts: child.restarts,
      incarnation: child.incarnation,
      lastReason: last === '' ? null : last,
      stateMs: Math.round(now - child.since),
      failures: child.failures,
      retryMs: child.state === 'restarting' && child.retryAt > now ? Math.round(child.retryAt - now) : null,
      rssBytes: seen ? seen.rssBytes : residentBytes(broker.pid()),
      facts: seen?.facts ?? {},
    };
  });
  return {
    node: config.node.name,
    namespace: config.node.namespace,
    version: packageVersion(),
    stateDir: config.node.stateDir,
    url,
    natsUrl: broker.url().replace(/:\/\/[^@/]*@/, '://***@'),
    model: model.id,
    engine: config.engine.kind,
    uptimeMs,
    deadLetters,
    processes: [node, ...children],
  };
}

const pageBytes = 4096;

/** Of a process that does not report it; 0 if it is gone, or the system does not tell. */
function residentBytes(pid: number | undefined): number {
  try {
    return Number(readFileSync(`/proc/${pid}/statm`, 'latin1').split(' ')[1]) * pageBytes;
  } catch {
    return 0;
  }
}
