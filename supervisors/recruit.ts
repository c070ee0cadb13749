/** How a role process of a node is made: what it is told, what is said of it, where it runs. */
import { availableParallelism } from 'node:os';
import type { ModelFile, NatsLogin } from './boot.js';
import type { Broker } from './broker.js';
import type { ResolvedConfig } from './config-schema.js';
import type { Recruit } from './fleet.js';
import type { BootMessage, Role } from './ipc.js';
import type { Listener } from './listener.js';
import type { LogSink } from './log.js';
import { osProcess } from './os-process.js';
import { type ProcessId, type StateDir, startTime } from './state-dir.js';

export interface Surroundings {
  readonly config: ResolvedConfig;
  readonly model: ModelFile;
  /** Script that serves `role <role>`. */
  readonly script: string;
  readonly sink: LogSink;
  readonly broker: Broker;
  readonly listener: Listener | undefined;
  readonly state: StateDir;
  readonly url: string;
  /** What the process connects to instead of the broker, if anything. */
  readonly route: (instance: string, login: NatsLogin) => NatsLogin;
}

/** Makes the n-th process of a role. All of one node remember their living processes together. */
export function recruiter(around: Surroundings): (role: Role, index: number) => Recruit {
  const { config, model, script, sink, broker, listener, state, url, route } = around;
  const living = new Map<number, ProcessId>();
  const remember = () => state.remember([...living.values()]);
  return (role, index) => {
    const instance = `${role}-${index}`;
    const boot = (incarnation: string) => {
      const { name: node, namespace } = config.node;
      const common = {
        instance,
        incarnation,
        node,
        namespace,
        nats: route(instance, broker.login(role)),
        config,
        model,
      };
      const message: BootMessage = role === 'gateway' ? { ...common, role, url } : { ...common, role };
      return role === 'gateway' && listener ? { message, handle: listener.handle } : { message };
    };
    const process = osProcess({
      role,
      instance,
      script,
      cpus: config.node.pinCpus && role !== 'gateway' ? cores(config, role, index) : undefined,
      // A worker's requests migrate; a gateway's clients are lost with it.
      silentMs: role === 'gateway' ? config.node.gatewaySilentMs : config.node.silentMs,
      stuckMs: config.node.stuckMs,
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
  };
}

/** Every process the configuration asks for, in start order: those that serve before those that ask. */
export function roster({ topology }: ResolvedConfig): readonly { readonly role: Role; readonly index: number }[] {
  const names = (role: Role) => Array.from({ length: topology[role] }, (_, index) => ({ role, index }));
  return [...names('prefill'), ...names('decode'), ...names('gateway')];
}

/** Cores for the n-th worker of a role, as taskset takes them: disjoint as long as there are enough. */
function cores({ engine, topology }: ResolvedConfig, role: Role, index: number): string {
  const all = availableParallelism();
  const first = (role === 'decode' ? topology.prefill + index : index) * engine.threads;
  return Array.from({ length: engine.threads }, (_, core) => (first + core) % all).join(',');
}
