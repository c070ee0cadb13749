/**
 * A simulated node: the real supervisor over machines that run the actors of real processes. A start takes a while, an end is noticed at once
 * and told to everybody, and who comes back has another name.
 */
import {
  decodeFirstConfig,
  type ExitReason,
  type FrontendFacts,
  type RouterFacts,
  type WorkerFacts,
} from '../../actors/index.js';
import type { NodeParts, ResolvedConfig } from '../../supervisors/index.js';
import { address, type InstanceInfo } from '../../transport/index.js';
import { openEngine, type WatchedEngine } from './engine.js';
import type { Machine } from './machine.js';
import type { Schedule } from './schedule.js';

export type Role = 'prefill' | 'decode' | 'gateway';
type GatewayActors = Awaited<ReturnType<NodeParts['startGatewayActors']>>;
type WorkerActors = Awaited<ReturnType<NodeParts['startWorkerActors']>>;
type GatewayPorts = Parameters<NodeParts['startGatewayActors']>[0]['ports'];
type Running = Awaited<ReturnType<ReturnType<NodeParts['createSupervisor']>['start']>>;

/** One life of an instance. */
export interface Life {
  readonly role: Role;
  readonly instance: string;
  readonly machine: Machine;
  readonly engine: WatchedEngine | undefined;
  /** Undefined while it starts. */
  readonly gateway: GatewayActors | undefined;
  readonly worker: WorkerActors | undefined;
  /** False: it takes leave, and no new connection. */
  readonly listening: boolean;
  end(reason: ExitReason, text: string): void;
}

export interface NodeSurroundings {
  readonly parts: NodeParts;
  readonly schedule: Schedule;
  readonly config: ResolvedConfig;
  readonly ports: GatewayPorts;
  readonly random: () => number;
  machine(name: string): Machine;
  /** Whether clients of this gateway wait for an answer. */
  waiting(life: Life): boolean;
  /** Names of lives stay the same: a planted bug. */
  readonly sameIncarnation: boolean;
  begun(life: Life): void;
  ended(life: Life, text: string): void;
}

export interface Node {
  readonly machine: Machine;
  /** Resolves when every process is up for the first time. */
  readonly up: Promise<unknown>;
  /** Present lives, by instance. */
  readonly lives: ReadonlyMap<string, Life>;
  /** Asks one to finish and end; the supervisor starts it anew. */
  recycle(instance: string): void;
  facts(life: Life): Promise<WorkerFacts | (FrontendFacts & { readonly router: RouterFacts })>;
}

const startMs = { least: 20, most: 200 } as const;
const drainMs = 10_000;
/** A gateway that takes leave serves newcomers for a while: they may not have heard. */
const leaveMs = 500;
const askMs = 1_000;
export const blockTokens = 64;

export function startNode(around: NodeSurroundings): Node {
  const { parts, schedule, config } = around;
  const machine = around.machine('node-0-1');
  const lives = new Map<string, Life>();
  const births = new Map<string, number>();

  /** Told when the broker hears again. */
  const obituaries: (() => void)[] = [];
  const announce = () => {
    if (machine.bus.state !== 'up') return;
    for (const say of obituaries.splice(0)) say();
  };
  machine.bus.onState(() => announce());
  function obituary({ role, machine: { name } }: Life, reason: string): void {
    obituaries.push(() =>
      machine.post.frame(
        address('node', machine.name, 'supervisor'),
        address(role, name, 'process'),
        'Down',
        { incarnation: name, reason },
        { req: '', attempt: 0, budgetMs: 0 },
      ),
    );
    announce();
  }

  function start(role: Role, instance: string, abort: AbortSignal): Promise<Running> {
    return new Promise((resolve, reject) => {
      const birth = (births.get(instance) ?? 0) + 1;
      births.set(instance, birth);
      const own = around.machine(around.sameIncarnation ? `${instance}-1` : `${instance}-${birth}`);
      const info: InstanceInfo = {
        component: role,
        instance,
        incarnation: own.name,
        node: 'simulated',
        host: 'simulated',
        pid: 1,
        draining: false,
      };
      const engine = role === 'gateway' ? undefined : openEngine(own, { slots: schedule.slots, cacheBlocks: 16 });
      let settle: (reason: ExitReason) => void = () => {};
      const exit = new Promise<ExitReason>((done) => {
        settle = done;
      });
      let over = false;
      const life = {
        role,
        instance,
        machine: own,
        engine,
        gateway: undefined as GatewayActors | undefined,
        worker: undefined as WorkerActors | undefined,
        listening: true,
        end(reason: ExitReason, text: string) {
          if (over) return;
          over = true;
          own.kill();
          void engine?.engine.stop();
          around.ended(life, text);
          // The supervisor's own process notices it, when it runs.
          machine.run(() => {
            obituary(life, text);
            settle(reason);
            reject(new Error(text));
          });
        },
      };
      lives.set(instance, life);
      around.begun(life);
      abort.addEventListener('abort', () => life.end({ kind: 'killed' }, 'no longer wanted'));

      const serve = (essential: GatewayActors['essential']): void => {
        for (const actor of essential) {
          void own.kernel.exit(actor).then((reason) => life.end(failure(reason, actor.path), `${actor.path} ended`));
        }
        const running: Running = {
          incarnation: own.name,
          exit,
          kill: () => life.end({ kind: 'killed' }, 'killed'),
          stop(deadlineMs) {
            own.run(() => void finish(deadlineMs));
            return exit;
          },
        };
        machine.run(() => resolve(running));
      };
      async function finish(deadlineMs: number): Promise<void> {
        life.gateway?.drain();
        own.after(leaveMs, () => {
          life.listening = false;
        });
        await life.worker?.drain(Math.min(deadlineMs, drainMs)).catch(() => {});
        if (life.gateway !== undefined) await served(own, () => around.waiting(life), drainMs);
        await (life.worker ?? life.gateway)?.leave();
        life.end({ kind: 'shutdown' }, 'drained');
      }
      async function launch(): Promise<void> {
        if (role === 'gateway') {
          life.gateway = await parts.startGatewayActors({
            bus: own.bus,
            post: own.post,
            kernel: own.kernel,
            info,
            config,
            blockTokens,
            ports: around.ports,
            warn: () => {},
          });
          life.gateway.announce();
          serve(life.gateway.essential);
          return;
        }
        const watched = (engine as WatchedEngine).engine;
        const { card, limits } = watched;
        life.worker = await parts.startWorkerActors({
          role,
          bus: own.bus,
          kernel: own.kernel,
          engine: watched,
          info: {
            ...info,
            model: card.id,
            engine: card.engine,
            fingerprint: card.fingerprint,
            slots: limits.slots,
            kvBlocks: limits.kvBlocks,
            blockTokens: card.blockTokens,
            contextTokens: limits.sequenceTokens,
          },
          rss: () => 0,
          ...(schedule.flow === 'decode-first' && { decodeFirst: decodeFirstConfig(config.disagg) }),
        });
        serve(life.worker.essential);
      }
      own.after(startMs.least + around.random() * (startMs.most - startMs.least), () => {
        launch().catch((error: unknown) =>
          life.end({ kind: 'error', error: error as Error }, `start failed: ${String(error)}`),
        );
      });
    });
  }

  const names = (role: Role, count: number) =>
    Array.from({ length: count }, (_, index) => ({ role, instance: `${role}-${index}` }));
  const members = [
    ...names('prefill', schedule.prefill),
    ...names('decode', schedule.decode),
    ...names('gateway', schedule.gateways),
  ];
  const tree = parts.createSupervisor({
    name: 'node',
    strategy: 'one_for_one',
    intensity: config.restart.intensity,
    periodMs: config.restart.periodMs,
    backoff: { minMs: config.restart.backoffMinMs, maxMs: config.restart.backoffMaxMs },
    clock: { now: machine.clock.now, random: around.random, setTimer: machine.after },
    children: members.map(({ role, instance }) => ({
      name: instance,
      child: { start: (abort) => start(role, instance, abort) },
      startDeadlineMs: config.node.startMs,
      shutdown: drainMs + 2_000,
    })),
  });

  return {
    machine,
    up: tree.start(),
    lives,
    recycle(instance) {
      machine.run(() => void tree.recycleChild(instance).catch(() => {}));
    },
    async facts({ worker, gateway }) {
      if (worker !== undefined) return worker.facts(askMs);
      if (gateway === undefined) throw new Error('it has not started');
      const [router, frontend] = await Promise.all([gateway.routerFacts(askMs), gateway.frontendFacts(askMs)]);
      return { ...frontend, router };
    },
  };
}

const failure = (reason: ExitReason, path: string): ExitReason =>
  reason.kind === 'error' ? reason : { kind: 'error', error: new Error(`${path} ended`) };

/** Resolves when nobody waits any more, or at the deadline. */
function served({ after, clock }: Machine, waiting: () => boolean, deadlineMs: number): Promise<void> {
  const until = clock.now() + deadlineMs;
  return new Promise((resolve) => {
    const look = () => {
      if (clock.now() >= until || (clock.now() >= until - deadlineMs + leaveMs && !waiting())) resolve();
      else after(servedEveryMs, look);
    };
    look();
  });
}

const servedEveryMs = 50;
