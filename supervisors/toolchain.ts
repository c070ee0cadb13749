/** Finds what `npm run setup` put into the cache folder: nats-server and the default model. */
import { existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { SupervisorError } from './errors.js';

export interface Toolchain {
  /** Absolute path of a nats-server 2.11 or later. */
  readonly natsServer: string;
  readonly defaultModel: {
    /** Model id as clients name it. */
    readonly id: string;
    /** Absolute path of the canonical source file. */
    readonly source: string;
    /** Of the source file, lower-case hex. */
    readonly sha256: string;
  };
  /** Absolute; converted weights belong here too. */
  readonly cacheDir: string;
}

/** As written by bin/setup; a manifest of another version is as good as none. */
interface Manifest {
  readonly version: 1;
  readonly natsServer?: { readonly path: string };
  readonly model?: { readonly id: string; readonly path: string; readonly sha256: string };
}

/** `DYNACT_CACHE`, else `dynact` in the user's cache folder. bin/setup/cache.mjs has the same rule. */
export function cacheFolder(env: NodeJS.ProcessEnv = process.env): string {
  return env.DYNACT_CACHE || join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dynact');
}

/**
 * Reads the manifest of the last set-up. The files' hashes were checked then and are not checked again.
 * @throws SupervisorError SUP_TOOLCHAIN: set-up has not run, or what it left is gone.
 */
export function resolveToolchain(env: NodeJS.ProcessEnv = process.env): Toolchain {
  const cacheDir = cacheFolder(env);
  const { natsServer, model } = readManifest(join(cacheDir, 'manifest.json'));
  const present = (what: string, path: string | undefined): string => {
    if (path === undefined) throw new SupervisorError('SUP_TOOLCHAIN', [`${cacheDir} has no ${what}`]);
    if (!existsSync(path)) throw new SupervisorError('SUP_TOOLCHAIN', [`${what} ${path} is gone`]);
    return path;
  };
  return {
    natsServer: present('nats-server', natsServer?.path),
    defaultModel: { id: model?.id ?? '', source: present('default model', model?.path), sha256: model?.sha256 ?? '' },
    cacheDir,
  };
}

function readManifest(file: string): Manifest {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    throw new SupervisorError('SUP_TOOLCHAIN', [`${file} cannot be read`], cause);
  }
  try {
    const manifest: unknown = JSON.parse(text);
    if (isManifest(manifest)) return manifest;
  } catch (cause) {
    throw new SupervisorError('SUP_TOOLCHAIN', [`${file} is not JSON`], cause);
  }
  throw new SupervisorError('SUP_TOOLCHAIN', [`${file} was written by another version of set-up`]);
}

function isManifest(value: unknown): value is Manifest {
  return typeof value === 'object' && value !== null && 'version' in value && value.version === 1;
}
