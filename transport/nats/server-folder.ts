/** The folder of an embedded broker: its files, and who else may still be using them. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { NetError } from '../errors.js';
import { endProcess, isAlive, type ProcessIdentity } from './process-identity.js';

export type Files = ReturnType<typeof layout>;

export function layout(dir: string) {
  return {
    config: path.join(dir, 'nats.conf'),
    passwords: path.join(dir, 'passwords.json'),
    credentials: path.join(dir, 'credentials'),
    store: path.join(dir, 'store'),
    log: path.join(dir, 'nats.log'),
    holders: path.join(dir, 'holders'),
    pid: path.join(dir, 'nats.stat'),
    record: path.join(dir, 'server.json'),
  };
}

export function writePrivate(file: string, text: string): void {
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, text, { mode: 0o600 });
  renameSync(temporary, file);
}

interface ServerRecord {
  readonly port: number;
  readonly owner: ProcessIdentity | undefined;
}

export function readRecord(file: string): ServerRecord | undefined {
  try {
    const value = JSON.parse(readFileSync(file, 'utf8')) as Partial<ServerRecord>;
    return Number.isInteger(value.port) ? { port: value.port as number, owner: value.owner } : undefined;
  } catch {
    return undefined;
  }
}

export function readIdentity(file: string): ProcessIdentity | undefined {
  try {
    return parseStat(readFileSync(file, 'utf8'));
  } catch {
    return undefined;
  }
}

function parseStat(text: string): ProcessIdentity | undefined {
  const pid = Number.parseInt(text, 10);
  const startTime = text.slice(text.lastIndexOf(')') + 2).split(' ')[19];
  return pid > 0 && startTime ? { pid, startTime } : undefined;
}

/** Ends the server that a killed run has left in it. Rejects with NET_STATE_IN_USE while its owner lives. */
export async function endLeftover(files: Files, dir: string): Promise<void> {
  const leftover = readIdentity(files.pid);
  if (!leftover || !isAlive(leftover)) return;
  const owner = readRecord(files.record)?.owner;
  if (owner && isAlive(owner)) throw new NetError('NET_STATE_IN_USE', { pid: owner.pid, dir });
  await endProcess(leftover, 5_000);
}
