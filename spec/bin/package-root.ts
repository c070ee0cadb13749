import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The clone's folder, wherever the built specs are in it. */
export function packageRoot(from = dirname(fileURLToPath(import.meta.url))): string {
  if (existsSync(join(from, 'package-lock.json'))) return from;
  const parent = dirname(from);
  if (parent === from) throw new Error('the specs are outside a clone');
  return packageRoot(parent);
}
