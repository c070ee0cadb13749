/** Files of the weights folder: hashed once, written whole or not at all, one writer at a time. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { type PrepareOptions, WeightsError } from './options.js';

interface Stamp {
  readonly path: string;
  readonly size: number;
  readonly mtimeMs: number;
  readonly ino: number;
  readonly sha256: string;
}

/** SHA-256 of a file, read again only if size, time or inode changed since it was last hashed. */
export async function stampedHash(
  path: string,
  folder: string,
  progress: (fraction: number) => void = () => {},
): Promise<{ readonly sha256: string; readonly fresh: boolean }> {
  const { size, mtimeMs, ino } = await stat(path);
  const name = createHash('sha256').update(path).digest('hex').slice(0, 16);
  const file = join(folder, `${name}.stamp`);
  try {
    const stamp = JSON.parse(await readFile(file, 'utf8')) as Stamp;
    if (stamp.path === path && stamp.size === size && stamp.mtimeMs === mtimeMs && stamp.ino === ino) {
      return { sha256: stamp.sha256, fresh: false };
    }
  } catch {
    // No stamp, or half of one: the hash is computed.
  }
  const sha256 = await hashFile(path, (bytes) => progress(bytes / size));
  await writeAtomic(file, JSON.stringify({ path, size, mtimeMs, ino, sha256 } satisfies Stamp));
  return { sha256, fresh: true };
}

export async function hashFile(path: string, progress: (bytes: number) => void = () => {}): Promise<string> {
  const hash = createHash('sha256');
  let bytes = 0;
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), async (chunks: AsyncIterable<Buffer>) => {
    for await (const chunk of chunks) {
      hash.update(chunk);
      bytes += chunk.length;
      progress(bytes);
    }
  });
  return hash.digest('hex');
}

export async function writeAtomic(path: string, text: string): Promise<void> {
  const part = `${path}.${process.pid}.part`;
  await writeFile(part, text);
  await rename(part, path);
}

/** Removes what conversions left that were killed half-way. */
export async function sweep(folder: string, prefix: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const pid = name.startsWith(prefix) ? /\.(\d+)\.part$/.exec(name)?.[1] : undefined;
    if (pid !== undefined && !alive(Number(pid))) await rm(join(folder, name), { force: true });
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

/** Runs `work` while holding a lock file. A lock whose process is dead is taken over. */
export async function locked<T>(path: string, options: PrepareOptions, work: () => Promise<T>): Promise<T> {
  const until = performance.now() + (options.deadlineMs ?? 600_000);
  for (;;) {
    try {
      const handle = await open(path, 'wx');
      await handle.writeFile(String(process.pid));
      await handle.close();
      break;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    if (await abandoned(path)) await rm(path, { force: true });
    else if (options.signal?.aborted === true) throw new WeightsError('GPU_WEIGHTS_FAILED', 'stopped');
    else if (performance.now() > until) throw new WeightsError('GPU_WEIGHTS_BUSY', path);
    else await new Promise((wake) => setTimeout(wake, 200));
  }
  try {
    return await work();
  } finally {
    await rm(path, { force: true });
  }
}

async function abandoned(path: string): Promise<boolean> {
  try {
    const [text, { mtimeMs }] = await Promise.all([readFile(path, 'utf8'), stat(path)]);
    // Empty: created a moment ago and not written yet, or left by a process that died in between.
    return text === '' ? Date.now() - mtimeMs > 5000 : !alive(Number(text));
  } catch {
    return false;
  }
}
