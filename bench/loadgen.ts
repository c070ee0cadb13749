/** The load generator: a C++ program, so that what it costs is small beside what it measures. Compiled at first use. */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { packageRoot } from '../supervisors/index.js';

const run = promisify(execFile);

export interface Load {
  readonly port: number;
  /** Each has one request under way at any time. */
  readonly clients: number;
  readonly requests: number;
  /** Request body; every `@@N@@` in it becomes the request's number. */
  readonly body: string;
  /** @default /v1/chat/completions */
  readonly path?: string;
  /** Processes whose CPU is of interest. */
  readonly pids?: readonly number[];
}

export interface LoadResult {
  readonly seconds: number;
  readonly requests: number;
  readonly events: number;
  readonly eventsPerSecond: number;
  /** Milliseconds to the first event of an answer. */
  readonly firstEventMs: { readonly p50: number; readonly p99: number };
  readonly latencyMs: { readonly p50: number; readonly p99: number };
  /** CPU seconds that a process used meanwhile. */
  cpu(pid: number): number;
}

/** Rejects if a request failed: figures of a run with errors mean nothing. */
export async function generateLoad(load: Load): Promise<LoadResult> {
  const program = await compiled();
  const folder = mkdtempSync(join(tmpdir(), 'dynact-load-'));
  try {
    const body = join(folder, 'body.json');
    writeFileSync(body, load.body);
    const { port, clients, requests, path = '/v1/chat/completions', pids = [] } = load;
    const args = [port, clients, requests, body, path, ...pids].map(String);
    const { stdout, stderr } = await run(program, args);
    const result = parseLoad(stdout);
    if (result.requests < requests) {
      throw new Error(`${requests - result.requests} of ${requests} requests failed: ${stderr.slice(0, 1000)}`);
    }
    return result;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The load generator's JSON line. Throws SyntaxError or TypeError if it is none. */
export function parseLoad(line: string): LoadResult {
  const raw = JSON.parse(line) as {
    done: number;
    seconds: number;
    events: number;
    events_s: number;
    ttft_ms: { p50: number; p99: number };
    latency_ms: { p50: number; p99: number };
    cpu: Record<string, number>;
  };
  if (typeof raw.done !== 'number' || typeof raw.cpu !== 'object') throw new TypeError('not a line of loadgen');
  return {
    seconds: raw.seconds,
    requests: raw.done,
    events: raw.events,
    eventsPerSecond: raw.events_s,
    firstEventMs: raw.ttft_ms,
    latencyMs: raw.latency_ms,
    cpu: (pid) => raw.cpu[String(pid)] ?? Number.NaN,
  };
}

async function compiled(): Promise<string> {
  const source = join(packageRoot(), 'bench', 'loadgen.cpp');
  const program = join(packageRoot(), '.build', 'bench', 'loadgen');
  if (existsSync(program) && statSync(program).mtimeMs > statSync(source).mtimeMs) return program;
  mkdirSync(dirname(program), { recursive: true });
  await run('c++', ['-O2', '-std=c++17', '-o', program, source]);
  return program;
}
