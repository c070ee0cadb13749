// The TypeScript build into dist/.
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeAtomic } from './cache.mjs';
import { filesBelow, inClone, readText, signature } from './clone.mjs';
import { run } from './processes.mjs';

const STAMP = inClone('dist/set-up.stamp');

export const typescript = {
  name: 'TypeScript build',
  after: ['dependencies'],
  needs: [],
  upToDate: () => existsSync(inClone('dist/bin/dynact.js')) && readText(STAMP) === sourcesSignature(),
  async run() {
    const before = sourcesSignature();
    rmSync(STAMP, { force: true });
    await run(process.execPath, [inClone('node_modules/typescript/bin/tsc'), '-p', inClone('tsconfig.json')], {
      cwd: inClone(),
    });
    removeOrphans();
    writeAtomic(STAMP, before);
    return 'built';
  },
};

function sourcesSignature() {
  const { version } = JSON.parse(readText(inClone('node_modules/typescript/package.json')) ?? '{}');
  const files = included().flatMap((folder) => filesBelow(inClone(folder), (path) => path.endsWith('.ts'), ['build']));
  return signature([inClone('tsconfig.json'), ...files], [version]);
}

const included = () => JSON.parse(readText(inClone('tsconfig.json'))).include;

/** Built in place, so that a running dynact finds its files; what has lost its source goes, so that no spec outlives its file. */
function removeOrphans() {
  const dist = inClone('dist');
  for (const file of filesBelow(dist, (path) => /\.js(\.map)?$/.test(path), ['start'])) {
    const source = inClone(file.slice(dist.length + 1).replace(/\.js(\.map)?$/, '.ts'));
    if (!existsSync(source)) rmSync(join(file));
  }
}
