/**
 * The folder of a node: one node at a time, nobody else's eyes. The lock is a file that names its holder by pid and start
 * time, so that a reused pid is not mistaken for a living node; the folder also remembers the processes that the node
 * started, so that the next one can clear up after a kill.
 */

import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { chmod, link, mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { SupervisorError } from './errors.js';

export interface ProcessId {
  readonly pid: number;
  /** Clock ticks after boot; 0 where the system does not say. */
  readonly startedAt: number;
}

/** What the lock file holds. */
export interface LockHolder extends ProcessId {
  /** Control socket of the node. */
  readonly control: string;
}

export interface StateDir {
  readonly path: string;
  readonly control: string;
  /** Call at every start and end of a child, with all that live. */
  remember(children: readonly ProcessId[]): void;
  release(): Promise<void>;
}

const lockFile = 'node.lock';
const childrenFile = 'children.json';
/** sun_path of Linux holds 107 bytes and a zero; of macOS, 103. */
const maxSocketPath = 103;

/**
 * Creates and locks the folder, and ends what an earlier node left running in it: its children drain by themselves when
 * their parent disappears, and get `drainMs` for that. Rejects with SUP_NODE_RUNNING, SUP_STATE_DIR or SUP_LEFTOVER.
 */
export async function openStateDir(path: string, drainMs: number, note: (text: string) => void): Promise<StateDir> {
  await prepare(path);
  const control = await controlPath(path);
  const holder: LockHolder = { pid: process.pid, startedAt: startTime(process.pid), control };
  await acquire(path, holder);
  const lock = join(path, lockFile);
  try {
    await endLeftovers(path, drainMs, note);
  } catch (error) {
    await rm(lock, { force: true });
    throw error;
  }
  return {
    path,
    control,
    remember: (children) => {
      // Synchronous: what was started must be on disk before anything can kill this process.
      writeFileSync(join(path, childrenFile), JSON.stringify(children), { mode: 0o600 });
    },
    release: async () => {
      await rm(join(path, childrenFile), { force: true });
      await rm(control, { force: true });
      await rm(lock, { force: true });
    },
  };
}

/** The living holder of the folder's lock. */
export async function lockHolder(path: string): Promise<LockHolder | undefined> {
  const holder = parse<LockHolder>(await readFile(join(path, lockFile), 'utf8').catch(() => ''));
  return holder && isAlive(holder) ? holder : undefined;
}

export function isAlive({ pid, startedAt }: ProcessId): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM' && sameStart(pid, startedAt);
  }
  return sameStart(pid, startedAt);
}

function sameStart(pid: number, startedAt: number): boolean {
  const now = startTime(pid);
  if (now === zombie) return false;
  return now === 0 || startedAt === 0 || now === startedAt;
}

/** Start time of a process that has ended and waits for its parent to notice. */
const zombie = -1;

/** Field 22 of /proc/<pid>/stat; 0 where there is none. */
export function startTime(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, field 2, may hold spaces and parentheses; what follows its last parenthesis is field 3 on.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? zombie : Number(fields[19]);
  } catch {
    return 0;
  }
}

async function prepare(path: string): Promise<void> {
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    const facts = await stat(path);
    if (!facts.isDirectory()) throw new Error('is not a folder');
    if ((facts.mode & 0o077) !== 0) await chmod(path, 0o700);
  } catch (error) {
    throw new SupervisorError('SUP_STATE_DIR', [path, error instanceof Error ? error.message : error], error);
  }
}

/** In the folder, or, where that path is too long for a socket, in a private folder of the system's temporary one. */
async function controlPath(path: string): Promise<string> {
  const inside = join(path, 'control.sock');
  if (Buffer.byteLength(inside) <= maxSocketPath) return inside;
  const folder = join(tmpdir(), `dynact-${process.getuid?.() ?? 0}`);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const facts = await stat(folder);
  if (facts.uid !== (process.getuid?.() ?? facts.uid) || (facts.mode & 0o077) !== 0) {
    throw new SupervisorError('SUP_STATE_DIR', [path, `too long for a socket, and ${folder} belongs to somebody else`]);
  }
  return join(folder, `${createHash('sha256').update(path).digest('hex').slice(0, 16)}.sock`);
}

async function acquire(path: string, holder: LockHolder): Promise<void> {
  const lock = join(path, lockFile);
  const mine = `${lock}.${process.pid}`;
  await writeFile(mine, JSON.stringify(holder), { mode: 0o600 });
  try {
    for (let attempt = 0; attempt < 10; attempt++) {
      try {
        // A link appears whole or not at all: nobody reads a half-written lock.
        await link(mine, lock);
        return;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
      await removeStale(path, lock);
    }
    throw new Error('the lock changes hands all the time');
  } catch (error) {
    if (error instanceof SupervisorError) throw error;
    throw new SupervisorError('SUP_STATE_DIR', [path, error instanceof Error ? error.message : error], error);
  } finally {
    await rm(mine, { force: true });
  }
}

async function removeStale(path: string, lock: string): Promise<void> {
  const seen = await readFile(lock, 'utf8').catch(() => undefined);
  if (seen === undefined) return;
  const holder = parse<LockHolder>(seen);
  if (holder && isAlive(holder)) throw new SupervisorError('SUP_NODE_RUNNING', [holder.pid, path]);
  // Two nodes may see the same stale lock. Only the one that moves just that file away may take its place.
  const aside = `${lock}.stale.${process.pid}`;
  await rename(lock, aside).catch(() => {});
  const moved = await readFile(aside, 'utf8').catch(() => undefined);
  if (moved !== undefined && moved !== seen) await link(aside, lock).catch(() => {});
  await rm(aside, { force: true });
}

async function endLeftovers(path: string, drainMs: number, note: (text: string) => void): Promise<void> {
  const file = join(path, childrenFile);
  const remembered = parse<ProcessId[]>(await readFile(file, 'utf8').catch(() => '')) ?? [];
  const living = () => remembered.filter(isAlive);
  if (living().length > 0) note(`waiting for ${living().length} processes of an earlier run to end`);
  const patience = performance.now() + drainMs + 2000;
  while (living().length > 0 && performance.now() < patience) await sleep(50);
  for (const { pid } of living()) {
    note(`ending process ${pid} of an earlier run`);
    process.kill(pid, 'SIGKILL');
  }
  const last = performance.now() + 5000;
  while (living().length > 0 && performance.now() < last) await sleep(20);
  const [survivor] = living();
  if (survivor) throw new SupervisorError('SUP_LEFTOVER', [survivor.pid, path]);
  await rm(file, { force: true });
}

function parse<T>(text: string): T | undefined {
  try {
    return JSON.parse(text) as T;
  } catch {
    return undefined;
  }
}
