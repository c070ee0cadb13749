/** The node under test: real processes, found by name, hit by signals or through the fault door, and all of them ended at the end. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type Fault, injectFault, type NodeStatus, nodeStatus } from '../../supervisors/index.js';

export interface NodeSettings {
  readonly flags: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** Instead of a new temporary one; removed at the end, too. */
  readonly stateDir?: string | undefined;
}

export interface FaultNode {
  readonly stateDir: string;
  readonly port: number;
  status(): Promise<NodeStatus>;
  /** Of a process that is up. */
  pid(instance: string): Promise<number>;
  inject(instance: string, fault: Fault): Promise<void>;
  /** Processes that were ever part of the node and still run. */
  survivors(): number[];
  /** Starts again in the same folder, as a user would after the node has ended. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const readyMs = 120_000;
const stopMs = 15_000;

/** No node outlives who started it. */
const living = new Set<ChildProcess>();
process.once('exit', () => {
  for (const child of living) child.kill('SIGKILL');
});
// A process that is ended by a signal runs no exit handlers of its own.
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => process.exit(130));

/** Rejects if it ends before it is ready, or is not after two minutes. */
async function ready(child: ChildProcess): Promise<void> {
  let text = '';
  await new Promise<void>((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`the node is not ready after ${readyMs} ms`)), readyMs);
    child.once('exit', (code, by) => reject(new Error(`the node ended with ${by ?? code}`)));
    child.once('error', reject);
    child.once('exit', () => clearTimeout(late));
    child.stdout?.on('data', (data) => {
      text = (text + data).slice(-4_096);
      if (!/^dynact ready /m.test(text)) return;
      clearTimeout(late);
      resolve();
    });
  });
}

/** SIGTERM, then SIGKILL. Resolves when it has ended. */
async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    const exit = once(child, 'exit');
    child.kill('SIGTERM');
    const late = setTimeout(() => child.kill('SIGKILL'), stopMs);
    await exit;
    clearTimeout(late);
  }
  living.delete(child);
}

/** `log`: file that the node's log is appended to; none = nobody reads it. */
export async function startFaultNode(settings: NodeSettings, log?: string): Promise<FaultNode> {
  const stateDir = settings.stateDir ?? mkdtempSync(join(tmpdir(), 'dynact-faults-'));
  const seen = new Map<number, string>();
  let started: ChildProcess | undefined;
  let port = 0;

  const status = async () => {
    const now = await nodeStatus(stateDir);
    for (const { pid } of now.processes) if (pid !== null && !seen.has(pid)) seen.set(pid, birth(pid));
    return now;
  };
  const survivors = () => [...seen].filter(([pid, born]) => born !== '' && birth(pid) === born).map(([pid]) => pid);
  const start = async () => {
    const stderr = openSync(log ?? '/dev/null', 'a');
    const flags = ['up', '--port', '0', '--state-dir', stateDir, '--log-format', 'json', ...settings.flags];
    started = spawn(process.execPath, [cli, ...flags], {
      stdio: ['ignore', 'pipe', stderr],
      env: { ...process.env, DYNACT_FAULTS_ENABLED: 'true', ...settings.env },
    });
    living.add(started);
    closeSync(stderr);
    await ready(started);
    port = Number(new URL((await status()).url).port);
  };
  const stop = async () => {
    if (started?.exitCode === null) await status().catch(() => {});
    // What is frozen cannot be asked to end.
    for (const pid of survivors()) signal(pid, 'SIGCONT');
    // The first asks for an end, the second does not wait for one.
    started?.kill('SIGTERM');
    if (started) await ended(started);
    for (const pid of survivors()) signal(pid, 'SIGKILL');
    rmSync(stateDir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  };
  try {
    await start();
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    stateDir,
    get port() {
      return port;
    },
    status,
    async pid(instance) {
      const found = (await status()).processes.find(
        (process) => process.instance === instance || (instance === 'node' && process.role === 'node'),
      );
      if (found?.pid == null) throw new Error(`no process ${instance}`);
      return found.pid;
    },
    inject: (instance, fault) => injectFault(stateDir, instance, fault),
    survivors,
    async restart() {
      if (started) await ended(started);
      await start();
    },
    stop,
  };
}

/** 0 sends nothing. False if the process has ended. */
export function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

/** When a process was started, so that another one of the same number is not taken for it; '' = it has ended. */
function birth(pid: number): string {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? '' : (fields[19] as string);
  } catch {
    return '';
  }
}

/** Which of the clients' ports are connected to the process: gateways share a port, so only the kernel knows. */
export function portsServedBy(pid: number, serverPort: number, clientPorts: readonly number[]): Set<number> {
  const inodes = new Set<string>();
  for (const fd of readdirSync(`/proc/${pid}/fd`)) {
    try {
      inodes.add(readlinkSync(`/proc/${pid}/fd/${fd}`));
    } catch {
      // Closed meanwhile.
    }
  }
  const wanted = new Set(clientPorts);
  const portOf = (address: string | undefined) => Number.parseInt(address?.split(':')[1] ?? '0', 16);
  const served = new Set<number>();
  for (const line of readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1)) {
    const fields = line.trim().split(/\s+/);
    const client = portOf(fields[2]);
    if (portOf(fields[1]) === serverPort && wanted.has(client) && inodes.has(`socket:[${fields[9]}]`))
      served.add(client);
  }
  return served;
}

/** Asks every 20 ms until the answer is not undefined; undefined after `ms`. */
export async function poll<T>(
  ms: number,
  question: () => Promise<T | undefined> | T | undefined,
): Promise<T | undefined> {
  const deadline = performance.now() + ms;
  for (;;) {
    const answer = await question();
    if (answer !== undefined || performance.now() > deadline) return answer;
    await sleep(20);
  }
}
