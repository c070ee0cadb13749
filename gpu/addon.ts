import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Folder of the package.json above this file: the same from sources, `dist` or any other build folder. */
export function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) throw new Error('no package.json above gpu/addon');
    folder = parent;
  }
  return folder;
}

let loaded: unknown;

/**
 * The native addon, loaded at first use, so that what needs none of it (the simulator, `dynact config`) runs without. `DYNACT_ADDON`
 * names another file, e.g. one built with a sanitizer. Throws an Error that says how to build it when it is not there.
 */
export function nativeAddon<T>(): T {
  if (loaded === undefined) {
    const path = process.env.DYNACT_ADDON ?? join(packageRoot(), 'gpu/native/build/Release/dynact.node');
    if (!existsSync(path)) throw new Error(`the native addon is not built (${path}): run "npm run setup"`);
    loaded = createRequire(import.meta.url)(path);
  }
  return loaded as T;
}
