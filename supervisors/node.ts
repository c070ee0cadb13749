/**
 * The node supervisor (design 3): one_for_one over operating-system processes. NATS first and last, then the workers, then
 * the gateways on one shared socket. The only place that knows all of them.
 */
import type { ExitReason } from '../actors/index.js';
import type { ModelFile, NatsLogin } from './boot.js';
import { embeddedBroker, externalBroker } from './broker.js';
import type { ResolvedConfig } from './config-schema.js';
import { serveControl } from './control.js';
import { SupervisorError } from './errors.js';
import type { Fault } from './faults.js';
import { startTogether, tenacious } from './first-start.js';
import { fleet, type Member } from './fleet.js';
import { mintIncarnation } from './incarnation.js';
import { type Link, openLink } from './link.js';
import { bindListener } from './listener.js';
import type { LogSink } from './log.js';
import { type ChildSpec, createSupervisor, type Running } from './otp/index.js';
import { recruiter, roster } from './recruit.js';
import { type RestartProgress, type RestartRequest, rollingRestart } from './restart.js';
import type { GatewayQuestion } from './route-question.js';
import { openStateDir } from './state-dir.js';
import { type NodeStatus, snapshot } from './status.js';

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
  /** Ends the node, whether it is up or not yet. */
  readonly callOff?: AbortSignal;
}

export interface Node {
  /** '' on a node without gateways. */
  readonly url: string;
  status(): Promise<NodeStatus>;
  /** See `rollingRestart`. One at a time. */
  restart(
    request: RestartRequest,
    report: (progress: RestartProgress) => void,
    cancelled: () => boolean,
  ): Promise<void>;
  /** Finishes what is in flight, at most `node.drainMs` per rank, and ends. Idempotent. */
  stop(): void;
  /** Ends at once. */
  kill(): void;
  /** Resolves when every process of the node has ended and the folder is free. `error`: the node gave up. */
  readonly exit: Promise<ExitReason>;
}

/** What a process may take beyond its drain deadline: it ends itself first, and can say why. */
const stopGraceMs = 2000;
const natsName = 'nats';
/** Nobody is served while it is away: a broker that came up and ran this long is started again at once, however often it is killed. */
const brokerQuietMs = 2_000;

/**
 * Resolves when everything is up. Rejects with SUP_NODE_RUNNING, SUP_PORT_IN_USE, SUP_START_FAILED, SUP_CALLED_OFF and their
 * like; then nothing is left behind.
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

    const links = new Map<string, Link>();
    undo.push(() => {
      for (const link of links.values()) link.close();
    });
    if (config.faults.enabled && config.faults.links)
      for (const { role, index } of roster(config)) links.set(`${role}-${index}`, await openLink(() => broker.url()));
    const route = (instance: string, login: NatsLogin): NatsLogin => {
      const link = links.get(instance);
      return link === undefined ? login : { ...login, url: `nats://127.0.0.1:${link.port}` };
    };
    const recruit = recruiter({ ...options, broker, listener, state, url, route });
    const processes = fleet(
      roster(config).map(({ role, index }) => recruit(role, index)),
      stopGraceMs,
    );
    const { backoffMinMs: minMs, backoffMaxMs: maxMs } = config.restart;
    const nats = broker.child && {
      name: natsName,
      child: tenacious(broker.child, { minMs, maxMs, ground: () => undefined }),
      startDeadlineMs: config.node.startMs,
      shutdown: 10_000,
      quietMs: brokerQuietMs,
    };
    const tree = createSupervisor({
      name: 'node',
      strategy: 'one_for_one',
      intensity: config.restart.intensity,
      periodMs: config.restart.periodMs,
      backoff: { minMs, maxMs },
      children: nats === undefined ? [] : [nats],
    });
    tree.onChange(({ name, state: now, lastReason }) => {
      if (now === 'up') progress(`${name} is up`);
      if (now === 'restarting') log.warn('restarting a process', { process: name, last: lastReason?.kind });
    });

    let running: Running | undefined;
    let up = false;
    const end = new AbortController();
    const stopping = () => end.signal.aborted;
    const stop = () => {
      if (stopping()) return;
      end.abort();
      // The gateways hold copies of their own and decide when to stop accepting.
      listener?.close();
      processes.dissolve();
      void running?.stop(Number.POSITIVE_INFINITY);
    };
    const kill = () => {
      end.abort();
      running?.kill();
    };
    options.callOff?.addEventListener('abort', stop);
    undo.push(() => options.callOff?.removeEventListener('abort', stop));
    if (options.callOff?.aborted) stop();
    const status = () =>
      snapshot({ ...options, broker, processes, tree, self, url, startedAt, stopping: stopping(), up });
    const fault = (instance: string, what: Fault) => {
      if (!config.faults.enabled) throw new Error('faults.enabled is false');
      const member = processes.members.find((candidate) => candidate.instance === instance);
      if (member === undefined) throw new Error('there is no such process');
      if (what.kind === 'link') {
        const link = links.get(instance);
        if (link === undefined) throw new Error('faults.links is false, or the process is a stand-in');
        link.set(what);
        return;
      }
      member.process.inject(what);
    };
    const gateways = () => processes.members.filter(({ role }) => role === 'gateway');
    const ask = (question: GatewayQuestion) => Promise.all(gateways().map(({ process }) => process.ask(question)));
    let restarting = false;
    const restart: Node['restart'] = async (request, report, cancelled) => {
      if (restarting) throw new SupervisorError('SUP_RESTART', ['its beginning', 'another one is under way']);
      if (stopping() || !up) throw new SupervisorError('SUP_RESTART', ['its beginning', 'the node is not up']);
      restarting = true;
      const site = { tree, fleet: processes, recruit, specOf: (member: Member) => specOf(member, config) };
      try {
        await rollingRestart(
          { ...site, startMs: config.node.startMs },
          request,
          report,
          () => stopping() || cancelled(),
        );
      } finally {
        restarting = false;
      }
    };
    const ends = (now: boolean) => (now ? kill() : stop());
    const closeControl = await serveControl(state.control, { status, stop: ends, fault, restart, ask });
    undo.push(closeControl);

    try {
      running = await tree.start(end.signal);
      undo.push(() => running?.stop(Number.POSITIVE_INFINITY));
      progress(`starting ${processes.members.map(({ instance }) => instance).join(', ')}`);
      const tenacity = { minMs, maxMs, ground: () => broker.pid() };
      const specs = processes.members.map((member) => {
        const spec = specOf(member, config);
        return { ...spec, child: tenacious(spec.child, tenacity) };
      });
      await startTogether(tree, running, specs);
      up = true;
    } catch (error) {
      if (stopping()) throw new SupervisorError('SUP_CALLED_OFF', [], error);
      // Whoever waits for a broker that does not stay has no better reason than that one's.
      const { failures = 0, state: natsState } = tree.status().find(({ name }) => name === natsName) ?? {};
      if (running && natsState !== undefined && (natsState !== 'up' || failures > 1))
        throw new SupervisorError('SUP_START_FAILED', [natsName, broker.lastExit()], error);
      throw error;
    }
    const exit = running.exit.then(async (reason): Promise<ExitReason> => {
      await unwind(undo);
      const cause = (reason as { cause?: unknown }).cause;
      if (stopping() || cause === undefined) return reason;
      return { kind: 'error', error: new SupervisorError('SUP_NODE_GAVE_UP', [(cause as Error).message], cause) };
    });
    return { url, status, restart, stop, kill, exit };
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

function specOf({ instance, child }: Member, { node }: ResolvedConfig): ChildSpec {
  return {
    name: instance,
    child: { start: child.start },
    startDeadlineMs: node.startMs,
    shutdown: node.drainMs + stopGraceMs,
  };
}

function urlHost(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1';
  return host.includes(':') ? `[${host}]` : host;
}
