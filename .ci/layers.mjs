// The import direction of design 2: a folder knows only what is below it, and through its index.ts.
import { readFileSync } from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';
import { filesBelow, root } from '../bin/setup/clone.mjs';

const BELOW = {
  transport: [],
  gpu: ['transport'],
  actors: ['transport', 'gpu'],
  gateway: ['transport', 'gpu', 'actors'],
  supervisors: ['transport', 'gpu', 'actors', 'gateway'],
  scenarios: ['transport', 'gpu', 'actors', 'gateway', 'supervisors'],
  bench: ['transport', 'gpu', 'actors', 'gateway', 'supervisors', 'scenarios'],
  bin: ['transport', 'gpu', 'actors', 'gateway', 'supervisors', 'scenarios'],
};
// `import … from 'x'`, `export … from 'x'`, `import 'x'` and `import('x')`, as the formatter leaves them.
const IMPORT = /(?:\bfrom |^import |\bimport\()'(\.{1,2}\/[^']+)'/gm;

/** What is wrong with the imports of `text`, the file `path` from the clone's root. */
export function misplacedImports(path, text) {
  const [folder] = path.split(sep);
  const faults = [];
  for (const [, target] of text.matchAll(IMPORT)) {
    const into = join(dirname(path), target);
    const [other] = into.split(sep);
    if (other === folder || !(other in BELOW)) continue;
    if (!BELOW[folder].includes(other)) faults.push(`${path}: ${folder} may not import ${other} (${target})`);
    else if (into !== join(other, 'index.js')) faults.push(`${path}: ${target} goes past ${other}/index.ts`);
  }
  return faults;
}

/** Over all sources; specs may look inside. */
export function checkLayers() {
  const files = Object.keys(BELOW).flatMap((folder) =>
    filesBelow(join(root, folder), (path) => path.endsWith('.ts'), ['build']),
  );
  return files.flatMap((file) => misplacedImports(relative(root, file), readFileSync(file, 'utf8')));
}
