/** Where a scenario takes place: a node of its own, one that runs in a state folder of this machine, or one behind a URL. */
import { execFile } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { type Fault, injectFault, type NodeStatus, nodeStatus, restartNode } from '../../supervisors/index.js';
import { startFaultNode } from './node.js';

export interface Stage {
  readonly kind: 'own' | 'folder' | 'url';
  readonly host: string;
  readonly port: number;
  readonly model: string;
  /** Rejects on a stage behind a URL. */
  status(): Promise<NodeStatus>;
  inject(instance: string, fault: Fault): Promise<void>;
  restart(): Promise<void>;
  /** Of its file system, until it is full. Returns what gives the space back. */
  fill(): () => void;
  /** Writes what the node's streams hold; says why not if it cannot. */
  exportTape(file: string): Promise<string>;
  close(): Promise<void>;
}

export interface StageSettings {
  readonly flags: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly diskMiB?: number | undefined;
}

const run = promisify(execFile);
const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const commandMs = 60_000;

/** Why a folder of limited size cannot be made here; '' = it can. */
export const noSmallDisk = () => (process.getuid?.() === 0 ? '' : 'a small file system can only be mounted by root');

export async function ownStage({ flags, env, diskMiB }: StageSettings, log?: string): Promise<Stage> {
  const disk = diskMiB === undefined ? undefined : mkdtempSync(join(tmpdir(), 'dynact-disk-'));
  const unmount = async () => {
    if (disk === undefined) return;
    await run('umount', ['-l', disk]).catch(() => {});
    rmSync(disk, { recursive: true, force: true });
  };
  try {
    if (disk !== undefined) await run('mount', ['-t', 'tmpfs', '-o', `size=${diskMiB}m`, 'tmpfs', disk]);
    const stateDir = disk && join(disk, 'node');
    const node = await startFaultNode({ flags, env, stateDir }, log);
    const { model } = await node.status();
    return {
      ...local('own', node.stateDir),
      host: '127.0.0.1',
      port: node.port,
      model,
      status: () => node.status(),
      fill: () => fill(disk as string),
      async close() {
        await node.stop();
        await unmount();
      },
    };
  } catch (error) {
    await unmount();
    throw error;
  }
}

export async function folderStage(stateDir: string): Promise<Stage> {
  const { url, model } = await nodeStatus(stateDir);
  const { hostname, port } = new URL(url);
  return {
    ...local('folder', stateDir),
    host: hostname,
    port: Number(port),
    model,
    fill: nowhere,
    close: async () => {},
  };
}

/** A plain http URL. Rejects if nobody there says what is served. */
export async function urlStage(url: string): Promise<Stage> {
  const { hostname, port } = new URL(url);
  const models = (await (await fetch(new URL('/v1/models', url))).json()) as { data?: { id?: string }[] };
  const model = models.data?.[0]?.id;
  if (model === undefined) throw new Error(`${url} serves no model`);
  return {
    kind: 'url',
    host: hostname,
    port: Number(port || 80),
    model,
    status: nowhere,
    inject: nowhere,
    restart: nowhere,
    fill: nowhere,
    exportTape: async () => `on the node behind ${url}`,
    close: async () => {},
  };
}

function nowhere(): never {
  throw new Error('its processes are not on this machine');
}

function local(kind: 'own' | 'folder', stateDir: string) {
  return {
    kind,
    status: () => nodeStatus(stateDir),
    inject: (instance: string, fault: Fault) => injectFault(stateDir, instance, fault),
    restart: () => restartNode(stateDir, { instances: [], all: false, inPlace: false }, () => {}),
    async exportTape(file: string) {
      try {
        await run(process.execPath, [cli, 'tape', 'export', file, '--state-dir', stateDir], { timeout: commandMs });
        return file;
      } catch (error) {
        return `none: ${(error as { stderr?: string }).stderr?.trim() || String(error)}`;
      }
    },
  } as const;
}

function fill(folder: string): () => void {
  const path = join(folder, 'filling');
  const fd = openSync(path, 'w');
  for (const size of [1 << 20, 1 << 12]) {
    try {
      for (;;) writeSync(fd, Buffer.alloc(size));
    } catch {
      // Full for pieces of this size.
    }
  }
  closeSync(fd);
  return () => rmSync(path, { force: true });
}
