/**
 * The embedded broker: one nats-server per state folder, on loopback, with random credentials and least rights per role. It is never
 * orphaned: a keeper process ends it when the last process that holds the folder's FIFO open is gone, so it outlives a killed
 * supervisor just until the children have drained; a deadline bounds that. Credentials live in files of mode 0600 and
 * never in arguments or the environment.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { accessSync, chmodSync, closeSync, constants, mkdirSync, openSync, rmSync } from 'node:fs';
import type { Stop } from '../bus.js';
import { NetError } from '../errors.js';
import { type Credentials, credentialsPath, readCredentials, readPasswords } from './credentials.js';
import { answering } from './greeting.js';
import { spawnKeeper } from './keeper.js';
import { type Role, roles } from './permissions.js';
import { choosePort } from './port.js';
import { olderThan, oldestServer } from './problems.js';
import { endProcess, identify, type ProcessIdentity } from './process-identity.js';
import { serverConfig } from './server-config.js';
import { endLeftover, layout, readIdentity, readRecord, writePrivate } from './server-folder.js';

export interface NatsServerOptions {
  /** Path of the nats-server executable, 2.11 or newer. */
  readonly binary: string;
  /** Folder of this broker alone; made with mode 0700. */
  readonly stateDir: string;
  readonly namespace: string;
  /** Default: the port of the last start in this folder if it is free, else a random one. */
  readonly port?: number;
  /** Most bytes JetStream may keep on disk and in memory. Default 4 GiB and 1 GiB. */
  readonly maxDiskBytes?: number;
  readonly maxMemoryBytes?: number;
  /** How long children may take to drain after the starter has died. Default 60,000. */
  readonly orphanDeadlineMs?: number;
  /** How long the broker may take to answer. Default 15,000. */
  readonly readyMs?: number;
}

export interface NatsServer {
  readonly url: string;
  readonly port: number;
  /** Of nats-server itself, not of its keeper. */
  readonly pid: number;
  readonly version: string;
  readonly logFile: string;
  /** FIFO that every process which still needs the broker holds open (`holdNatsServer`). */
  readonly holders: string;
  credentials(role: Role): Credentials;
  /** File of mode 0600 with a role's credentials; hand its path to a child. */
  credentialsFile(role: Role): string;
  /** Resolves when nats-server has ended, for whatever reason. */
  readonly exited: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
  /** Asks it to end, waits up to `deadlineMs` (default 5,000), then kills it. Idempotent. */
  stop(deadlineMs?: number): Promise<void>;
}

const host = '127.0.0.1';

/**
 * Starts the broker and resolves once it answers. A broker left over in the folder by a killed run is ended first. Rejects with
 * NET_NO_BINARY, NET_VERSION_TOO_OLD, NET_PORT_IN_USE, NET_STATE_IN_USE, NET_NO_JETSTREAM or NET_SERVER_EXIT.
 */
export async function startNatsServer(options: NatsServerOptions): Promise<NatsServer> {
  const version = binaryVersion(options.binary);
  const files = layout(options.stateDir);
  for (const dir of [options.stateDir, files.credentials, files.store])
    mkdirSync(dir, { recursive: true, mode: 0o700 });
  chmodSync(options.stateDir, 0o700);
  await endLeftover(files, options.stateDir);

  const passwords = readPasswords(files.passwords);
  const port = await choosePort(host, options.port, readRecord(files.record)?.port);
  const name = `dynact-${randomBytes(8).toString('hex')}`;
  const { namespace, maxDiskBytes = 4 * 1024 ** 3, maxMemoryBytes = 1024 ** 3 } = options;
  const { store } = files;
  writePrivate(
    files.config,
    serverConfig({ namespace, host, port, name, passwords, store, maxDiskBytes, maxMemoryBytes }),
  );
  const url = `nats://${host}:${port}`;
  for (const user of roles) {
    const credentials: Credentials = { url, namespace, user, password: passwords[user] };
    writePrivate(credentialsPath(files, user), `${JSON.stringify(credentials)}\n`);
  }
  rmSync(files.holders, { force: true });
  rmSync(files.pid, { force: true });
  execFileSync('mkfifo', ['-m', '600', files.holders]);
  // Read and write: opening never blocks, and this process counts as a holder.
  const release = holdNatsServer(files.holders);

  const keeper = spawnKeeper(options.binary, files, options.stateDir, options.orphanDeadlineMs ?? 60_000);
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) => {
    keeper.once('exit', (code, signal) => resolve({ code, signal }));
    keeper.once('error', () => resolve({ code: 127, signal: null }));
  });
  let stopping: Promise<void> | undefined;
  async function stop(deadlineMs = 5_000): Promise<void> {
    const server = readIdentity(files.pid);
    if (server) await endProcess(server, deadlineMs);
    release();
    const late = setTimeout(() => keeper.kill('SIGKILL'), 2_000);
    await exited;
    clearTimeout(late);
  }
  const stopOnce = (deadlineMs?: number): Promise<void> => {
    stopping ??= stop(deadlineMs);
    return stopping;
  };
  let server: ProcessIdentity;
  try {
    server = await answering(host, port, name, exited, files, options.readyMs ?? 15_000);
  } catch (error) {
    await stopOnce(500);
    throw error;
  }
  writePrivate(files.record, `${JSON.stringify({ port, owner: identify(process.pid) })}\n`);
  return {
    url,
    port,
    pid: server.pid,
    version,
    logFile: files.log,
    holders: files.holders,
    credentials: (role) => readCredentials(credentialsPath(files, role)),
    credentialsFile: (role) => credentialsPath(files, role),
    exited,
    stop: stopOnce,
  };
}

/** Keeps the broker of this FIFO alive as long as this process lives or until the returned function is called. */
export function holdNatsServer(holders: string): Stop {
  const fd = openSync(holders, constants.O_RDWR);
  let held = true;
  return () => {
    if (held) closeSync(fd);
    held = false;
  };
}

function binaryVersion(binary: string): string {
  let output: string;
  try {
    accessSync(binary, constants.X_OK);
    output = execFileSync(binary, ['--version'], {
      encoding: 'utf8',
      timeout: 10_000,
      stdio: ['ignore', 'pipe', 'ignore'],
    });
  } catch (error) {
    throw new NetError(
      'NET_NO_BINARY',
      { path: binary, why: error instanceof Error ? error.message : String(error) },
      error,
    );
  }
  const found = /v?(\d+\.\d+\.\d+\S*)/.exec(output)?.[1];
  if (!found)
    throw new NetError('NET_NO_BINARY', { path: binary, why: `it is no nats-server: ${output.slice(0, 80)}` });
  if (olderThan(found, oldestServer)) throw new NetError('NET_VERSION_TOO_OLD', { found, wanted: oldestServer });
  return found;
}
