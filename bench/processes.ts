/** Processes that a benchmark starts beside itself. None outlives it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { availableParallelism } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const readyMs = 120_000;
const stopMs = 15_000;
const living = new Set<ChildProcess>();

process.once('exit', () => {
  for (const child of living) child.kill('SIGKILL');
});
// A process that is ended by a signal runs no exit handlers of its own.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));

let nodeFlags: readonly string[] = [];

/** From here on every Node process that is started writes a CPU profile into this folder when it ends. */
export function profileInto(folder: string): void {
  nodeFlags = ['--cpu-prof', `--cpu-prof-dir=${folder}`];
}

export interface SpawnOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** Cores as taskset takes them; ignored where there is no taskset. */
  readonly cpus?: string | undefined;
  readonly ipc?: boolean;
  /** File descriptor that its stderr is written to. @default this process's stderr */
  readonly stderr?: number;
}

export interface Started {
  readonly child: ChildProcess;
  readonly pid: number;
  /** SIGTERM, then SIGKILL. Resolves when it has ended. */
  stop(): Promise<void>;
}

export function start(command: readonly string[], options: SpawnOptions = {}): Started {
  const pinned = options.cpus !== undefined && hasTaskset() ? ['taskset', '-c', options.cpus, ...command] : command;
  const child = spawn(pinned[0] as string, pinned.slice(1), {
    stdio: ['ignore', 'pipe', options.stderr ?? 'inherit', ...(options.ipc === true ? (['ipc'] as const) : [])],
    serialization: 'advanced',
    env: { ...process.env, ...options.env },
  });
  living.add(child);
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => resolve());
    child.once('error', () => resolve());
  }).then(() => void living.delete(child));
  return {
    child,
    pid: child.pid ?? 0,
    async stop() {
      child.kill('SIGTERM');
      const late = setTimeout(() => child.kill('SIGKILL'), stopMs);
      await ended;
      clearTimeout(late);
    },
  };
}

/** Resolves with the first match in what the process writes to stdout. Rejects if it ends first, or after two minutes. */
export function says(started: Started, pattern: RegExp): Promise<RegExpExecArray> {
  const { child } = started;
  return new Promise((resolve, reject) => {
    let text = '';
    const finish = (settle: () => void) => {
      clearTimeout(timer);
      child.off('exit', onExit);
      child.stdout?.off('data', onData);
      child.stdout?.resume();
      settle();
    };
    const fail = (why: string) => finish(() => reject(new Error(`${child.spawnargs.join(' ')}: ${why}`)));
    const onExit = (code: number | null, signal: string | null) => fail(`ended with ${signal ?? code}`);
    const onData = (chunk: Buffer) => {
      text += chunk.toString();
      const match = pattern.exec(text);
      if (match) finish(() => resolve(match));
    };
    const timer = setTimeout(() => fail(`said nothing like ${pattern} within ${readyMs} ms`), readyMs);
    child.once('exit', onExit);
    child.once('error', (error) => fail(error.message));
    child.stdout?.on('data', onData);
  });
}

/** A script in a Node process of its own. */
export function startScript(url: URL, args: readonly string[], options: SpawnOptions = {}): Started {
  return start([process.execPath, ...nodeFlags, fileURLToPath(url), ...args], options);
}

export function hasTaskset(): boolean {
  return (process.env.PATH ?? '').split(delimiter).some((folder) => existsSync(join(folder, 'taskset')));
}

/** The two cores that all sides of a comparison share; undefined on a machine that has no more. */
export function twoCores(): string | undefined {
  return availableParallelism() > 2 ? '0,1' : undefined;
}

/** CPU nanoseconds of every living thread of a process but its main one. Reads the scheduler's own count: ticks are too coarse. */
export function sideThreadsCpuNs(pid: number, threads: readonly string[]): number {
  let sum = 0;
  for (const thread of threads) {
    if (Number(thread) === pid) continue;
    try {
      sum += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]);
    } catch {
      // It has ended meanwhile.
    }
  }
  return sum;
}

/** One that nobody listens on now, for a program that cannot say which it took. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as AddressInfo;
      probe.close(() => resolve(port));
    });
  });
}
