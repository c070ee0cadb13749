/**
 * The embedded broker: one nats-server per state folder, on loopback, with random credentials and least rights per role. It is never
 * orphaned: a keeper process ends it when the last process that holds the folder's FIFO open is gone, so it outlives a killed
 * supervisor just until the children have drained; a deadline bounds that. Credentials live in files of mode 0600 and
 * never in arguments or the environment.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  accessSync,
  chmodSync,
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer } from 'node:net';
import path from 'node:path';
import type { Stop } from '../bus.js';
import { NetError } from '../errors.js';
import { payloadBytes } from '../limits.js';
import { subjects } from '../subjects.js';
import { keeperScript } from './keeper.js';
import { permissionsOf, type Role, roles } from './permissions.js';
import { olderThan, oldestServer } from './problems.js';
import { endProcess, identify, isAlive, type ProcessIdentity } from './process-identity.js';

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

/** All that a process needs to connect: what `credentialsFile` holds, as JSON. */
export interface Credentials {
  readonly url: string;
  readonly namespace: string;
  readonly user: Role;
  readonly password: string;
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
  const port = await choosePort(options.port, readRecord(files.record)?.port);
  const name = `dynact-${randomBytes(8).toString('hex')}`;
  writePrivate(files.config, serverConfig({ options, port, name, passwords, files }));
  const url = `nats://${host}:${port}`;
  for (const user of roles) {
    const credentials: Credentials = { url, namespace: options.namespace, user, password: passwords[user] };
    writePrivate(credentialsPath(files, user), `${JSON.stringify(credentials)}\n`);
  }
  rmSync(files.holders, { force: true });
  rmSync(files.pid, { force: true });
  execFileSync('mkfifo', ['-m', '600', files.holders]);
  // Read and write: opening never blocks, and this process counts as a holder.
  const release = holdNatsServer(files.holders);

  const keeper = spawnKeeper(options, files);
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
    server = await answering(port, name, exited, files, options.readyMs ?? 15_000);
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

/** Reads a credentials file. Throws if others may read it or it is no such file. */
export function readCredentials(file: string): Credentials {
  if ((statSync(file).mode & 0o077) !== 0)
    throw new TypeError(`${file} must be readable by its owner alone (mode 0600)`);
  const value = JSON.parse(readFileSync(file, 'utf8')) as Partial<Credentials>;
  const { url, namespace, user, password } = value;
  if (!url || !namespace || !user || !password || !roles.includes(user))
    throw new TypeError(`${file} holds no credentials`);
  return { url, namespace, user, password };
}

type Files = ReturnType<typeof layout>;

function layout(dir: string) {
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

function credentialsPath(files: Files, role: Role): string {
  return path.join(files.credentials, `${role}.json`);
}

function writePrivate(file: string, text: string): void {
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, text, { mode: 0o600 });
  renameSync(temporary, file);
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

/** The same over restarts, so that children reconnect to a broker that was started anew. */
function readPasswords(file: string): Record<Role, string> {
  let kept: Partial<Record<Role, unknown>> = {};
  try {
    kept = JSON.parse(readFileSync(file, 'utf8'));
  } catch {
    // First start in this folder, or a file that is not ours to trust.
  }
  const passwords = Object.fromEntries(
    roles.map((role) => {
      const old = kept[role];
      return [role, typeof old === 'string' && /^[\w-]{43}$/.test(old) ? old : randomBytes(32).toString('base64url')];
    }),
  ) as Record<Role, string>;
  writePrivate(file, `${JSON.stringify(passwords)}\n`);
  return passwords;
}

interface ServerRecord {
  readonly port: number;
  readonly owner: ProcessIdentity | undefined;
}

function readRecord(file: string): ServerRecord | undefined {
  try {
    const value = JSON.parse(readFileSync(file, 'utf8')) as Partial<ServerRecord>;
    return Number.isInteger(value.port) ? { port: value.port as number, owner: value.owner } : undefined;
  } catch {
    return undefined;
  }
}

function readIdentity(file: string): ProcessIdentity | undefined {
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

async function endLeftover(files: Files, dir: string): Promise<void> {
  const leftover = readIdentity(files.pid);
  if (!leftover || !isAlive(leftover)) return;
  const owner = readRecord(files.record)?.owner;
  if (owner && isAlive(owner)) throw new NetError('NET_STATE_IN_USE', { pid: owner.pid, dir });
  await endProcess(leftover, 5_000);
}

async function choosePort(wanted: number | undefined, last: number | undefined): Promise<number> {
  if (wanted) {
    if (!(await isFree(wanted))) throw new NetError('NET_PORT_IN_USE', { port: wanted, host });
    return wanted;
  }
  if (last && (await isFree(last))) return last;
  return listenOnce(0);
}

async function isFree(port: number): Promise<boolean> {
  try {
    await listenOnce(port);
    return true;
  } catch {
    return false;
  }
}

function listenOnce(port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(port, host, () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address ? address.port : port));
    });
  });
}

interface ConfigInput {
  readonly options: NatsServerOptions;
  readonly port: number;
  readonly name: string;
  readonly passwords: Record<Role, string>;
  readonly files: Files;
}

/** nats-server's configuration. JSON values are valid in it, which takes care of quoting. */
function serverConfig({ options, port, name, passwords, files }: ConfigInput): string {
  const s = subjects(options.namespace);
  const users = roles.map((role) => {
    const { publish, subscribe } = permissionsOf(role, s);
    return {
      user: role,
      password: passwords[role],
      permissions: { publish, subscribe, allow_responses: { max: 1, expires: '1m' } },
    };
  });
  const settings = {
    host,
    port,
    server_name: name,
    max_payload: payloadBytes,
    // Core messages to a reader that does not keep up are dropped with its connection; it reconnects and resyncs.
    write_deadline: '5s',
    jetstream: {
      store_dir: files.store,
      max_file_store: options.maxDiskBytes ?? 4 * 1024 ** 3,
      max_memory_store: options.maxMemoryBytes ?? 1024 ** 3,
    },
    authorization: { timeout: 5, users },
  };
  return `${Object.entries(settings)
    .map(([key, value]) => `${key}: ${JSON.stringify(value, undefined, 2)}`)
    .join('\n')}\n`;
}

function spawnKeeper(options: NatsServerOptions, files: Files): ChildProcess {
  const seconds = Math.ceil((options.orphanDeadlineMs ?? 60_000) / 1000);
  // Its own session: Ctrl-C in the terminal is the supervisor's to handle, children still need the broker while they drain.
  const keeper = spawn(
    '/bin/sh',
    [
      '-c',
      keeperScript,
      'nats-keeper',
      options.binary,
      files.config,
      files.holders,
      files.pid,
      files.log,
      String(seconds),
    ],
    {
      cwd: options.stateDir,
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
    },
  );
  keeper.stdin?.on('error', () => {});
  keeper.unref();
  (keeper.stdin as unknown as { unref?(): void } | null)?.unref?.();
  return keeper;
}

/** Waits until the server on the port says that it is ours and has JetStream, and its keeper, which may be slower, who it is. */
async function answering(
  port: number,
  name: string,
  exited: Promise<{ code: number | null }>,
  files: Files,
  readyMs: number,
): Promise<ProcessIdentity> {
  const deadline = performance.now() + readyMs;
  let gone: { code: number | null } | undefined;
  void exited.then((exit) => {
    gone = exit;
  });
  for (;;) {
    if (gone) {
      const log = tail(files.log);
      if (/address already in use/.test(log)) throw new NetError('NET_PORT_IN_USE', { port, host });
      // The keeper's exit code is the server's, as a shell says it: 128 and the signal.
      if (gone.code !== null && gone.code > 128) throw new NetError('NET_SERVER_KILLED', { signal: gone.code - 128 });
      throw new NetError('NET_SERVER_EXIT', { exit: `code ${gone.code}`, log });
    }
    const info = await serverInfo(port);
    if (info?.server_name === name) {
      if (info.jetstream !== true) throw new NetError('NET_NO_JETSTREAM', { url: `nats://${host}:${port}` });
      const server = readIdentity(files.pid);
      if (server) return server;
    }
    if (performance.now() > deadline) {
      throw new NetError('NET_SERVER_EXIT', { exit: `silent for ${readyMs} ms`, log: tail(files.log) });
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The INFO line a server greets with. */
function serverInfo(port: number): Promise<{ server_name?: unknown; jetstream?: unknown } | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    let text = '';
    const done = (value: { server_name?: unknown } | undefined) => {
      socket.destroy();
      resolve(value);
    };
    socket.setTimeout(1_000, () => done(undefined));
    socket.once('error', () => done(undefined));
    socket.once('close', () => done(undefined));
    socket.on('data', (data) => {
      text += data.toString('utf8');
      const end = text.indexOf('\r\n');
      if (end < 0 && text.length < 65_536) return;
      try {
        done(JSON.parse(text.slice('INFO '.length, end)));
      } catch {
        done(undefined);
      }
    });
  });
}

function tail(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim().split('\n').slice(-5).join(' | ').slice(-800);
  } catch {
    return 'no log';
  }
}
