/** From a model's name to the file that the workers load. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { ModelFile } from './boot.js';
import type { ResolvedConfig } from './config-schema.js';
import { SupervisorError } from './errors.js';
import { cacheFolder, resolveToolchain } from './toolchain.js';

/** Hashes of files, by path, size and time of change: hashing gigabytes at each start would cost seconds. */
const hashesFile = 'hashes.json';

/** Rejects with SUP_MODEL or SUP_TOOLCHAIN. */
export async function resolveModel(config: ResolvedConfig): Promise<ModelFile> {
  const { id } = config.model;
  if (config.engine.kind === 'mock') return { id, path: '', sourceHash: 'mock', format: 'mock' };
  if (id.includes('/')) {
    const facts = await stat(id).catch((error: NodeJS.ErrnoException) => {
      throw new SupervisorError('SUP_MODEL', [id, error.code === 'ENOENT' ? 'no such file' : error.message], error);
    });
    if (!facts.isFile()) throw new SupervisorError('SUP_MODEL', [id, 'is not a file']);
    return { id: basename(id).replace(/\.gguf$/i, ''), path: id, sourceHash: await hashOf(id), format: 'source' };
  }
  const { defaultModel } = resolveToolchain();
  if (id !== defaultModel.id) {
    throw new SupervisorError('SUP_MODEL', [id, `unknown; give the path of a GGUF file, or use ${defaultModel.id}`]);
  }
  return { id, path: defaultModel.source, sourceHash: defaultModel.sha256, format: 'source' };
}

async function hashOf(path: string): Promise<string> {
  const { size, mtimeMs, ino } = await stat(path);
  const key = [path, size, mtimeMs, ino].join(' ');
  const file = join(cacheFolder(), hashesFile);
  const known = await readKnown(file);
  const found = known[key];
  if (found !== undefined) return found;
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 })) hash.update(chunk as Buffer);
  const digest = hash.digest('hex');
  await mkdir(cacheFolder(), { recursive: true, mode: 0o700 });
  await writeFile(`${file}.${process.pid}`, JSON.stringify({ ...known, [key]: digest }));
  await rename(`${file}.${process.pid}`, file);
  return digest;
}

async function readKnown(file: string): Promise<Record<string, string>> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Record<string, string>;
  } catch {
    return {};
  }
}
