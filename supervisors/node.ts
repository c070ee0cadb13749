/**
 * The node supervisor (design 3): one_for_one over operating-system processes. NATS first and last, then the workers, then
 * the gateways on one shared socket. The only place that knows all of them.
 */
import { availableParallelism } from 'node:os';
import type { ExitReason } from '../actors/index.js';
import type { ModelFile } from './boot.js';
import { type Broker, embeddedBroker, externalBroker } from './broker.js';
import type { ResolvedConfig } from './config-schema.js';
import { serveControl } from './control.js';
import { SupervisorError } from './errors.js';
import type { Fault } from './faults.js';
import { type Fleet, fleet } from './fleet.js';
import { mintIncarnation } from './incarnation.js';
import type { BootMessage, Role } from './ipc.js';
import { bindListener, type Listener } from './listener.js';
import type { LogSink } from './log.js';
import { osProcess } from './os-process.js';
import { type Child, type ChildSpec, createSupervisor, type Running, type Supervisor } from './otp/index.js';
import { packageVersion } from './package-root.js';
import { openStateDir, type ProcessId, type StateDir, startTime } from './state-dir.js';
import type { NodeStatus, ProcessStatus } from './status.js';

export interface NodeOptions {
  readonly config: ResolvedConfig;
  readonly model: ModelFile;
  /** nats-server executable; not needed with an external broker. */
  readonly natsServer: string;
  /** Script that serves `role <role>`: the dynact command itself. */
  readonly script: string;
  readonly sink: LogSink;
  /** What is being done while the node starts, for people. */
  readonly progress: (text: string) => void;
}

export interface Node {
  /** '' on a node without gateways. */
  readonly url: string;
  status(): NodeStatus;
  /** Finishes what is in flight, at most `node.drainMs` per rank, and ends. Idempotent. */
  stop(): void;
  /** Ends at once. */
  kill(): void;
  /** Resolves when every process of the node has ended and the folder is free. `error`: the node gave up. */
  readonly exit: Promise<ExitReason>;
}

/** What a process may take beyond its drain deadline: it ends itself first, and can say why. */
const stopGraceMs = 2000;

/**
 * Resolves when everything is up. Rejects with SUP_NODE_RUNNING, SUP_PORT_IN_USE, SUP_START_FAILED and their like; then
 * nothing is left behind.
 */
export async function startNode(options: NodeOptions): Promise<Node> {
  const { config, sink, progress } = options;
  const { log } = sink;
  const self = mintIncarnation('node');
  const startedAt = performance.now();
  const undo: (() => unknown)[] = [];
  try {
    const state = await openStateDir(config.node.stateDir, config.node.drainMs, progress);
    undo.push(() => state.release());
    const { host, port } = config.http;
    const listener = config.topology.gateway > 0 ? await bindListener(host, port) : undefined;
    undo.push(() => listener?.close());
    const url = listener ? `http://${urlHost(host)}:${listener.port}` : '';
    const broker =
      config.nats.url === ''
        ? embeddedBroker(config, options.natsServer, self, log)
        : await externalBroker(config, self, log);
    undo.push(() => broker.close());

    const processes = rankAndFile(options, { broker, listener, state, url });
    undo.push(() => processes.abandon());
    const tree = createSupervisor({
      name: 'node',
      strategy: 'one_for_one',
      intensity: config.restart.intensity,
      periodMs: config.restart.periodMs,
      backoff: { minMs: config.restart.backoffMinMs, maxMs: config.restart.backoffMaxMs },
      children: specs(config, broker, processes, progress),
    });
    tree.onChange(({ name, state: now, lastReason }) => {
      if (now === 'up') progress(`${name} is up`);
      if (now === 'restarting') log.warn('restarting a process', { process: name, last: lastReason?.kind });
    });

    let running: Running | undefined;
    let stopping = false;
    const stop = () => {
      if (stopping || !running) return;
      stopping = true;
      // The gateways hold copies of their own and decide when to stop accepting.
      listener?.close();
      void running.stop(Number.POSITIVE_INFINITY);
    };
    const kill = () => {
      stopping = true;
      running?.kill();
    };
    const status = () => snapshot({ options, broker, processes, tree, self, url, startedAt, stopping, up: !!running });
    const fault = (instance: string, what: Fault) => {
      if (!config.faults.enabled) throw new Error('faults.enabled is false');
      const member = processes.members.find((candidate) => candidate.instance === instance);
      if (member === undefined) throw new Error('there is no such process');
      member.process.inject(what);
    };
    const closeControl = await serveControl(state.control, { status, stop: (now) => (now ? kill() : stop()), fault });
    undo.push(closeControl);

    running = await tree.start();
    const exit = running.exit.then(async (reason): Promise<ExitReason> => {
      await unwind(undo);
      const cause = (reason as { cause?: unknown }).cause;
      if (stopping || cause === undefined) return reason;
      return { kind: 'error', error: new SupervisorError('SUP_NODE_GAVE_UP', [(cause as Error).message], cause) };
    });
    return { url, status, stop, kill, exit };
  } catch (error) {
    await unwind(undo);
    // The supervisor's own error says which child; the child's says why.
    throw error instanceof Error && error.cause instanceof Error && !(error instanceof SupervisorError)
      ? error.cause
      : error;
  }
}

async function unwind(undo: (() => unknown)[]): Promise<void> {
  for (const step of undo.splice(0).reverse()) await step();
}

interface Surroundings {
  readonly broker: Broker;
  readonly listener: Listener | undefined;
  readonly state: StateDir;
  readonly url: string;
}

/** Every role process of the node, in start order: those that serve before those that ask. */
function rankAndFile({ config, model, script, sink }: NodeOptions, around: Surroundings): Fleet {
  const { broker, listener, state, url } = around;
  const living = new Map<number, ProcessId>();
  const remember = () => state.remember([...living.values()]);
  const { prefill, decode, gateway } = config.topology;
  const names = (role: Role, count: number) => Array.from({ length: count }, (_, index) => ({ role, index }));
  const all = [...names('prefill', prefill), ...names('decode', decode), ...names('gateway', gateway)];
  return fleet(
    all.map(({ role, index }, position) => {
      const instance = `${role}-${index}`;
      const boot = (incarnation: string) => {
        const { name: node, namespace } = config.node;
        const common = { instance, incarnation, node, namespace, nats: broker.login(role), config, model };
        const message: BootMessage = role === 'gateway' ? { ...common, role, url } : { ...common, role };
        return role === 'gateway' && listener ? { message, handle: listener.handle } : { message };
      };
      const process = osProcess({
        role,
        instance,
        script,
        cpus: config.node.pinCpus && role !== 'gateway' ? cores(config, position) : undefined,
        silentMs: config.node.silentMs,
        boot,
        line: (text) => sink.line(instance, text),
        spawned: (pid) => {
          living.set(pid, { pid, startedAt: startTime(pid) });
          remember();
        },
        exited: (pid, incarnation, reason) => {
          broker.announceDown(role, incarnation, reason);
          living.delete(pid);
          remember();
        },
      });
      return { role, instance, process };
    }),
  );
}

function specs(config: ResolvedConfig, broker: Broker, all: Fleet, progress: (text: string) => void): ChildSpec[] {
  const { startMs: startDeadlineMs, drainMs } = config.node;
  const children: ChildSpec[] = all.members.map(({ instance, child }) => ({
    name: instance,
    child: { start: child.start },
    startDeadlineMs,
    shutdown: drainMs + stopGraceMs,
  }));
  let begun = false;
  const beginOnce = () => {
    if (begun) return;
    begun = true;
    progress(`starting ${all.members.map(({ instance }) => instance).join(', ')}`);
    all.begin();
  };
  if (broker.child === undefined) {
    beginOnce();
    return children;
  }
  const { start } = broker.child;
  const nats: Child = {
    start: async (abort) => {
      const life = await start(abort);
      beginOnce();
      return life;
    },
  };
  return [{ name: 'nats', child: nats, startDeadlineMs, shutdown: 10_000 }, ...children];
}

/** Cores for the n-th worker, as taskset takes them: disjoint as long as there are enough. */
function cores(config: ResolvedConfig, position: number): string {
  const all = availableParallelism();
  return Array.from({ length: config.engine.threads }, (_, i) => (position * config.engine.threads + i) % all).join(
    ',',
  );
}

function urlHost(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1';
  return host.includes(':') ? `[${host}]` : host;
}

interface View {
  readonly options: NodeOptions;
  readonly broker: Broker;
  readonly processes: Fleet;
  readonly tree: Supervisor;
  readonly self: string;
  readonly url: string;
  readonly startedAt: number;
  readonly stopping: boolean;
  readonly up: boolean;
}

function snapshot({ options, broker, processes, tree, self, url, startedAt, stopping, up }: View): NodeStatus {
  const { config, model } = options;
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
      rssBytes: seen?.rssBytes ?? 0,
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
    processes: [node, ...children],
  };
}
