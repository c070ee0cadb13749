/** The trees of a node in one process on a real broker: what a node starts in separate processes, minus the processes. */

import type { GatewayBoot, ListenHandle, ModelFile, RunningTree, WorkerBoot } from '../../supervisors/boot.js';
import { resolveConfig } from '../../supervisors/config.js';
import type { ResolvedConfig } from '../../supervisors/config-schema.js';
import { bindListener } from '../../supervisors/listener.js';
import { startGateway } from '../../supervisors/trees/gateway.js';
import { startWorker } from '../../supervisors/trees/worker.js';
import { type Broker, startBroker } from '../transport/kit.js';

export interface Trees {
  readonly url: string;
  readonly broker: Broker;
  readonly workers: Map<string, RunningTree>;
  addWorker(role: 'prefill' | 'decode', incarnation: string): Promise<RunningTree>;
  stop(): Promise<void>;
}

export interface TreesOptions {
  readonly prefill: number;
  readonly decode: number;
  readonly flags?: Record<string, string | number>;
  readonly model?: ModelFile;
}

const mock: ModelFile = { id: 'mock', path: '', sourceHash: 'mock', format: 'mock' };

export async function startTrees(options: TreesOptions): Promise<Trees> {
  const broker = await startBroker();
  const { config } = await resolveConfig({
    cwd: broker.dir,
    env: {},
    flags: {
      'engine.kind': 'mock',
      'mock.speedup': 0,
      'log.level': process.env.SPEC_LOG ?? 'error',
      ...options.flags,
    },
  });
  const boot = <R extends 'prefill' | 'decode' | 'gateway'>(role: R, incarnation: string) => {
    const { url, user, password } = broker.server.credentials(role);
    const instance = incarnation.replace(/-[^-]*$/, '');
    const base = { role, instance, incarnation, node: 'spec', namespace: 'spec', model: options.model ?? mock };
    return { ...base, nats: { url, user, pass: password }, config: config as ResolvedConfig };
  };
  const workers = new Map<string, RunningTree>();
  const addWorker = async (role: 'prefill' | 'decode', incarnation: string) => {
    const tree = await startWorker(boot(role, incarnation) as WorkerBoot);
    workers.set(incarnation, tree);
    return tree;
  };
  const starting: Promise<unknown>[] = [];
  for (let i = 0; i < options.prefill; i++) starting.push(addWorker('prefill', `prefill-${i}-a`));
  for (let i = 0; i < options.decode; i++) starting.push(addWorker('decode', `decode-${i}-a`));
  await Promise.all(starting);
  const listener = await bindListener('127.0.0.1', 0);
  const url = `http://127.0.0.1:${listener.port}`;
  const handle: ListenHandle = listener.handle;
  const gateway = await startGateway({ ...boot('gateway', 'gateway-0-a'), url, listener: handle } as GatewayBoot);
  return {
    url,
    broker,
    workers,
    addWorker,
    async stop() {
      await gateway.drain(1_000);
      for (const tree of workers.values()) await tree.drain(1_000);
      await broker.stop();
    },
  };
}
