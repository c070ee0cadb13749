// The cache folder: what set-up downloads, outside the clone and shared by all clones of this user. `manifest.json` in it says
// where things are; supervisors/toolchain.ts reads it.
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, mkdirSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { homedir, userInfo } from 'node:os';
import { join } from 'node:path';
import { SetupError } from './report.mjs';

const MANIFEST_VERSION = 1;
/** Another set-up may be downloading 130 MB on a slow line. */
const LOCK_WAIT_MS = 30 * 60_000;

/** `DYNACT_CACHE`, else `dynact` in the user's cache folder. supervisors/toolchain.ts has the same rule. */
export function cacheFolder(env = process.env) {
  return env.DYNACT_CACHE || join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dynact');
}

export function openCache(folder = cacheFolder()) {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const file = join(folder, 'manifest.json');
  let manifest = readManifest(file);
  return {
    folder,
    path: (...names) => join(folder, ...names),
    /** An entry of the manifest: `natsServer`, `llamaHeaders`, `llamaServer`, `model`, `weights` or `stamps`. */
    get: (name) => manifest[name],
    set(name, value) {
      // Read again: another clone's set-up may have added entries meanwhile.
      manifest = { ...readManifest(file), version: MANIFEST_VERSION, [name]: value };
      writeAtomic(file, `${JSON.stringify(manifest, null, 2)}\n`);
    },
  };
}

function readManifest(file) {
  try {
    const manifest = JSON.parse(readFileSync(file, 'utf8'));
    return manifest.version === MANIFEST_VERSION ? manifest : {};
  } catch {
    return {};
  }
}

export function writeAtomic(file, text) {
  const partial = `${file}.${process.pid}.part`;
  writeFileSync(partial, text);
  renameSync(partial, file);
}

/**
 * True if `file` has these bytes. The hash is computed once for a file of given size, change time and inode: any write since
 * then makes it be computed again, and `thorough` always does.
 */
export async function isIntact(cache, file, sha256, { thorough = false } = {}) {
  if (!existsSync(file)) return false;
  if (!thorough && cache.get('stamps')?.[file] === stampOf(file, sha256)) return true;
  if ((await sha256Of(file)) !== sha256) return false;
  remember(cache, file, sha256);
  return true;
}

/** Notes that `file` as it is now has this hash. */
export function remember(cache, file, sha256) {
  const known = Object.entries(cache.get('stamps') ?? {}).filter(([path]) => existsSync(path));
  cache.set('stamps', { ...Object.fromEntries(known), [file]: stampOf(file, sha256) });
}

/** Names one state of a file on disk. */
export function stampOf(file, sha256 = '') {
  const { size, mtimeMs, ctimeMs, ino } = statSync(file);
  return [sha256, size, mtimeMs, ctimeMs, ino].join(' ');
}

export async function sha256Of(file) {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk);
  return hash.digest('hex');
}

/**
 * Runs `work` while no other set-up of this user works on this cache. The lock is an abstract socket: the kernel frees it
 * however its holder ends, so there is no stale lock to break.
 */
export async function exclusively(folder, onWait, work, waitMs = LOCK_WAIT_MS) {
  const name = createHash('sha256').update(`${userInfo().uid} ${folder}`).digest('hex').slice(0, 32);
  const path = `\0dynact-setup-${name}`;
  const deadline = Date.now() + waitMs;
  let told = false;
  for (;;) {
    const lock = await listen(path);
    if (lock) {
      try {
        return await work();
      } finally {
        lock.release();
      }
    }
    if (!told) onWait();
    told = true;
    const left = deadline - Date.now();
    if (left <= 0)
      throw new SetupError(`another set-up has been using ${folder} for ${waitMs / 60_000} minutes: stop it first`);
    await untilFreed(path, left);
  }
}

function listen(path) {
  const waiting = new Set();
  const server = createServer((socket) => {
    waiting.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => waiting.delete(socket));
  });
  return new Promise((resolve, reject) => {
    server.on('error', (error) => (error.code === 'EADDRINUSE' ? resolve(undefined) : reject(error)));
    server.listen({ path }, () =>
      resolve({
        release() {
          server.close();
          for (const socket of waiting) socket.destroy();
        },
      }),
    );
  });
}

/** Resolves when the holder lets go of its end, or after `ms`. */
function untilFreed(path, ms) {
  return new Promise((resolve) => {
    const socket = connect({ path });
    const timer = setTimeout(() => socket.destroy(), ms);
    socket.on('error', () => {});
    socket.on('close', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
