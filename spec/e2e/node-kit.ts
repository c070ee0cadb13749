/**
 * A whole node as its user runs it: the `dynact up` command in a folder of its own, every role a real process. What a spec
 * starts here is ended by `endNodes`, processes that outlived their node included.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type NodeStatus, nodeStatus, type ProcessStatus } from '../../supervisors/index.js';
import { isAlive, type ProcessId, startTime } from '../../supervisors/state-dir.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
/** Far above what anything takes on a machine with other things to do. */
export const patienceMs = 60_000;

export interface StartOptions {
  /** Beside the environment of the specs. */
  readonly env?: Readonly<Record<string, string>>;
  /** Instead of a new temporary one. */
  readonly folder?: string;
}

export interface TestNode {
  readonly folder: string;
  readonly stateDir: string;
  readonly process: ChildProcess;
  /** Once it is ready. */
  readonly url: string;
  /** All it has said on stdout. */
  output(): string;
  /** All it has logged. */
  log(): string;
  status(): Promise<NodeStatus>;
  processOf(instance: string): Promise<ProcessStatus>;
  /** Of a process that is up. */
  pid(instance: string): Promise<number>;
  kill(instance: string, signal?: NodeJS.Signals): Promise<void>;
  /** Asks for an end and resolves with the exit code. */
  stop(signal?: NodeJS.Signals): Promise<number | null>;
}

interface Started extends TestNode {
  readonly closed: Promise<unknown>;
  /** Every process that was ever seen in its status. */
  readonly seen: Map<number, ProcessId>;
}

const started: Started[] = [];

/** Runs `dynact up` with the mock engine unless the flags name another. Rejects with what it logged when it ends at once. */
export async function startNode(flags: readonly string[] = [], options: StartOptions = {}): Promise<TestNode> {
  const node = await beginNode(flags, options);
  await ready(node);
  return node;
}

/** Resolves when the node says that it is ready. Rejects with what it logged when it ends instead. */
export async function ready(node: TestNode): Promise<void> {
  await until('the ready line', () => {
    if (node.process.exitCode !== null) throw new Error(`it ended: ${node.log()}`);
    return node.url !== '';
  });
  await node.status();
}

/** Runs `dynact up` to its end: what it says when it cannot start. */
export async function failToStart(flags: readonly string[], options: StartOptions = {}) {
  const node = await beginNode(flags, options);
  await node.closed;
  return { code: node.process.exitCode, log: node.log(), url: node.url };
}

/** Runs `dynact up` without waiting for anything. */
export async function beginNode(
  flags: readonly string[],
  { env = {}, folder }: StartOptions = {},
): Promise<TestNode & { readonly closed: Promise<unknown> }> {
  const home = folder ?? (await mkdtemp(join(tmpdir(), 'dynact-e2e-')));
  const engine = flags.includes('--engine') ? [] : ['--engine', 'mock', '--model', 'mock'];
  const all = ['up', ...engine, '--port', '0', '--log-format', 'json', ...flags];
  const child = spawn(process.execPath, [cli, ...all], {
    cwd: home,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout?.on('data', (data) => {
    stdout += data;
  });
  child.stderr?.on('data', (data) => {
    stderr += data;
  });
  const seen = new Map<number, ProcessId>();
  const node: Started = {
    folder: home,
    stateDir: join(home, '.dynact'),
    process: child,
    closed: once(child, 'close'),
    seen,
    get url() {
      return /^dynact ready (\S+) \(.*\)\n/m.exec(stdout)?.[1] ?? '';
    },
    output: () => stdout,
    log: () => stderr,
    async status() {
      const now = await nodeStatus(node.stateDir, patienceMs);
      for (const { pid } of now.processes) {
        if (pid !== null && !seen.has(pid)) seen.set(pid, { pid, startedAt: startTime(pid) });
      }
      return now;
    },
    async processOf(instance) {
      const found = (await node.status()).processes.find((process) => process.instance === instance);
      if (!found) throw new Error(`no process ${instance}`);
      return found;
    },
    async pid(instance) {
      const up = await until(`${instance} being up`, async () => {
        const now = await node.processOf(instance);
        return now.state === 'up' && now.pid !== null && now.pid;
      });
      return up;
    },
    async kill(instance, signal = 'SIGKILL') {
      process.kill(await node.pid(instance), signal);
    },
    async stop(signal = 'SIGTERM') {
      child.kill(signal);
      await node.closed;
      return child.exitCode;
    },
  };
  started.push(node);
  return node;
}

/** For `after` and `afterEach`: ends every node that was started, whatever state it is in, and removes its folder. */
export async function endNodes(): Promise<void> {
  for (const node of started.splice(0)) {
    await node.status().catch(() => {});
    node.process.kill('SIGKILL');
    await node.closed;
    for (const process of survivors(node)) kill(process);
    await until('the end of all processes', () => survivors(node).length === 0);
    await rm(node.folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 });
  }
}

/** Processes of a node, as far as its status has shown them, that still run. */
export function survivors(node: TestNode): ProcessId[] {
  return [...(node as Started).seen.values()].filter(isAlive);
}

function kill({ pid }: ProcessId): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // it has just ended
  }
}

/** Asks until there is an answer: the state asked for is another process's, which tells nobody that it changed. */
export async function until<T>(
  what: string,
  question: () => Promise<T | undefined | false> | T | undefined | false,
  ms = patienceMs,
): Promise<T> {
  const deadline = performance.now() + ms;
  for (;;) {
    const answer = await question();
    if (answer !== undefined && answer !== false) return answer;
    if (performance.now() > deadline) throw new Error(`no ${what} within ${ms} ms`);
    await sleep(20);
  }
}

/** Facts that count what is held for requests, or by nobody any more: all of them are zero on a node that nobody uses. */
const held = ['inFlight', 'waiting', 'kvBlocks', 'exportedBlocks', 'mailDepth', 'outbox', 'leaked'];

/** What the processes of a node still hold, e.g. `decode-0 kvBlocks 3`; empty on an idle node. */
async function leftovers(node: TestNode): Promise<string[]> {
  const { processes } = await node.status();
  return processes.flatMap(({ instance, state, facts }) => {
    if (state !== 'up') return [`${instance} ${state}`];
    const busy = held.filter((name) => name in facts && facts[name] !== 0).map((name) => `${name} ${facts[name]}`);
    if (typeof facts.slots === 'string' && !facts.slots.startsWith('0/')) busy.push(`slots ${facts.slots}`);
    return busy.map((fact) => `${instance} ${fact}`);
  });
}

/** Facts are looked at twice a second and told once a second: what is seen may be this old. */
const factsAgeMs = 1600;

/** Resolves when nothing is held any more, and that is no old news. Rejects with what is. */
export async function untilIdle(node: TestNode, ms = patienceMs): Promise<void> {
  const asked = performance.now();
  let left: string[] = [];
  await until(
    'idle node',
    async () => {
      left = await leftovers(node);
      return left.length === 0 && performance.now() - asked > factsAgeMs;
    },
    ms,
  ).catch(() => {
    throw new Error(`still held after ${ms} ms: ${left.join(', ')}`);
  });
}

export interface MetricsView {
  /** Sum over all series of this name whose labels include `labels`; 0 if there is none. */
  sum(name: string, labels?: Readonly<Record<string, string>>): number;
}

/** What the gateway exports now. With several gateways on one port it is any of theirs. */
export async function metricsOf(node: TestNode): Promise<MetricsView> {
  const text = await (await fetch(`${node.url}/metrics`)).text();
  return {
    sum: (name, labels = {}) => {
      let sum = 0;
      for (const line of text.split('\n')) {
        if (!line.startsWith(`${name} `) && !line.startsWith(`${name}{`)) continue;
        if (Object.entries(labels).some(([label, value]) => !line.includes(`${label}="${value}"`))) continue;
        sum += Number(line.slice(line.lastIndexOf(' ') + 1));
      }
      return sum;
    },
  };
}
