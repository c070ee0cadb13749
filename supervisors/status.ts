/** What `dynact status` shows. `--json` prints a NodeStatus as it is; new fields may come, none of these goes. */
import type { Facts, Role } from './ipc.js';
import type { ChildState } from './otp/index.js';

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
  /** The node first, then in start order. */
  readonly processes: readonly ProcessStatus[];
}
