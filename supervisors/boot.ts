/**
 * What a child process is told over IPC when it starts, and what it gives back. Credentials travel here and nowhere else:
 * not in arguments, not in the environment, both of which other processes of the host can read.
 */
import type { ExitReason } from '../actors/index.js';
import type { ResolvedConfig } from './config-schema.js';
import type { FaultDoor } from './faults.js';
import type { GatewayAnswer, GatewayQuestion } from './route-question.js';

/** The weights a worker loads. For the mock engine `path` is '' and `sourceHash` is 'mock'. */
export interface ModelFile {
  /** Model id as clients name it. */
  readonly id: string;
  /** Absolute path of the file the engine runs. */
  readonly path: string;
  /** SHA-256 of the canonical source file, lower-case hex. */
  readonly sourceHash: string;
  /** Weight format of `path`, e.g. `q4_0-pure`, or `source` when it runs unconverted. */
  readonly format: string;
}

export interface NatsLogin {
  readonly url: string;
  readonly user: string;
  readonly pass: string;
  /** The embedded broker stays until the last process that holds this FIFO has ended; absent for an external one. */
  readonly holders?: string;
}

/** A bound socket that nobody accepts on until an HTTP server listens on it. */
export interface ListenHandle {
  readonly fd: number;
  close(): void;
}

interface Boot {
  /** Stable over restarts, e.g. `decode-0`. */
  readonly instance: string;
  /** New with every start; also the process's address on the bus. */
  readonly incarnation: string;
  /** Name of the node this process belongs to. */
  readonly node: string;
  readonly namespace: string;
  readonly nats: NatsLogin;
  readonly config: ResolvedConfig;
  readonly model: ModelFile;
}

export interface WorkerBoot extends Boot {
  readonly role: 'prefill' | 'decode';
}

export interface GatewayBoot extends Boot {
  readonly role: 'gateway';
  /** `http://host:port` as it is reachable; the port is the real one even if 0 was asked for. */
  readonly url: string;
  /** The node's socket, shared by all gateways: `http.listen(listener)`. Closing it here leaves the others' copies open. */
  readonly listener: ListenHandle;
}

/** A role's tree in its process, as `startWorker` and `startGateway` return it. */
export interface RunningTree {
  /** Unready, leave the registry, finish what is in flight within `deadlineMs`, stop. Resolves when all has ended. */
  drain(deadlineMs: number): Promise<void>;
  /** Resolves when nobody is left who would ask it for anything; absent: it is never needed by others. */
  readonly unneeded?: () => Promise<void>;
  /** Ends now, without waiting for anything. */
  kill(): void;
  /** Resolves when the tree has ended, whoever ended it. */
  readonly exit: Promise<ExitReason>;
  /** For `dynact status`, e.g. { inFlight: 3, mailDepth: 0 }. Called every half second, and may be that old; must be cheap. */
  facts(): Record<string, number | string>;
  /** Of a gateway: why its router did or would do something, and what is set. */
  readonly answer?: (question: GatewayQuestion) => Promise<GatewayAnswer>;
  /** Only with `faults.enabled`: see faults.ts. */
  readonly faults?: FaultDoor;
}
