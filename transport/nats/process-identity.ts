import { readFileSync } from 'node:fs';

/** A process, not just a pid: pids are used again, (pid, start time) is not until the next boot. */
export interface ProcessIdentity {
  readonly pid: number;
  /** In clock ticks since boot, as /proc says it. */
  readonly startTime: string;
}

/** Undefined if there is no such process, or only a zombie. */
export function identify(pid: number): ProcessIdentity | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    const startTime = fields[19];
    return startTime === undefined || fields[0] === 'Z' ? undefined : { pid, startTime };
  } catch {
    return undefined;
  }
}

export function isAlive(process: ProcessIdentity): boolean {
  return identify(process.pid)?.startTime === process.startTime;
}

/** SIGTERM, up to `deadlineMs` of patience, SIGKILL. Resolves when the process is gone. */
export async function endProcess(target: ProcessIdentity, deadlineMs: number): Promise<void> {
  const deadline = performance.now() + deadlineMs;
  send(target, 'SIGTERM');
  // A stopped process acts on SIGTERM only once it continues.
  send(target, 'SIGCONT');
  let killed = false;
  while (isAlive(target)) {
    if (!killed && performance.now() > deadline) {
      killed = true;
      send(target, 'SIGKILL');
    }
    if (killed && performance.now() > deadline + 5_000) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function send(target: ProcessIdentity, signal: NodeJS.Signals): void {
  if (!isAlive(target)) return;
  try {
    process.kill(target.pid, signal);
  } catch {
    // It ended in between.
  }
}
