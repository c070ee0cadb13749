// The clone that set-up works on, and hashes over its sources.
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

export const inClone = (...names) => join(root, ...names);

/** All files below `folder` for which `wanted(path from folder)` holds, in a fixed order; folders in `skip` are not entered. */
export function filesBelow(folder, wanted, skip = []) {
  if (!existsSync(folder)) return [];
  const walk = (at) =>
    readdirSync(at, { withFileTypes: true }).flatMap((entry) => {
      const path = join(at, entry.name);
      if (entry.isDirectory()) return skip.includes(entry.name) ? [] : walk(path);
      return wanted(relative(folder, path)) ? [path] : [];
    });
  return walk(folder).sort();
}

/** Hash over names (from `base`) and contents of `files`, and over `extra`. */
export function signature(files, extra = [], base = root) {
  const hash = createHash('sha256');
  for (const text of extra) hash.update(`${text}\0`);
  for (const file of files)
    hash
      .update(`${relative(base, file)}\0`)
      .update(readFileSync(file))
      .update('\0');
  return hash.digest('hex');
}

export function readText(file) {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
