/** A dynact node as users start it, in processes of its own, so that every role's CPU can be told apart. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nodeStatus } from '../supervisors/index.js';
import { connectNats, readCredentials, subjects } from '../transport/index.js';
import { says, startScript } from './processes.js';

export interface NodeOptions {
  /** Of `dynact up`. */
  readonly flags: readonly string[];
  /** Settings that have no flag. */
  readonly env?: Readonly<Record<string, string>>;
  readonly cpus?: string | undefined;
}

export interface DynactNode {
  readonly port: number;
  readonly model: string;
  pid(role: 'gateway' | 'prefill' | 'decode' | 'nats'): number;
  /** Every process of the node but its supervisor. */
  readonly pids: readonly number[];
  /** How many commands the broker has ever stored in mailboxes. */
  commands(): Promise<number>;
  stop(): Promise<void>;
}

/** Runs `dynact up` on a free port in a folder of its own; resolves when it is ready. */
export async function startDynact({ flags, env, cpus }: NodeOptions): Promise<DynactNode> {
  const stateDir = mkdtempSync(join(tmpdir(), 'dynact-bench-'));
  // A node hands the Node flags it was started with on to its children.
  const started = startScript(
    new URL('../bin/dynact.js', import.meta.url),
    ['up', '--port', '0', '--state-dir', stateDir, '--log-level', 'warn', ...flags],
    { cpus, ...(env && { env }) },
  );
  const stop = async () => {
    await started.stop();
    rmSync(stateDir, { recursive: true, force: true });
  };
  try {
    await says(started, /^dynact ready /m);
    const status = await nodeStatus(stateDir);
    const processes = status.processes.flatMap(({ role, pid }) =>
      pid === null || role === 'node' ? [] : [{ role, pid }],
    );
    return {
      port: Number(new URL(status.url).port),
      model: status.model,
      pid(role) {
        const found = processes.find((entry) => entry.role === role);
        if (found === undefined) throw new Error(`the node has no ${role} process`);
        return found.pid;
      },
      pids: processes.map(({ pid }) => pid),
      commands: () => storedCommands(stateDir),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function storedCommands(stateDir: string): Promise<number> {
  const bus = await connectNats(readCredentials(join(stateDir, 'nats', 'credentials', 'node.json')));
  try {
    const info = await bus.manager.streams.info(subjects(bus.namespace).stream('MAIL'));
    return info.state.last_seq;
  } finally {
    await bus.close();
  }
}
