// llama.cpp's own server, the peer of `npm run bench -- engine`: compiled from the sources of the prebuilt libraries and linked to
// them. No part of a plain set-up.
import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { inClone } from './clone.mjs';
import { PACKAGE, withSources } from './headers.mjs';
import { run } from './processes.mjs';

const WANTED = ['common', 'ggml', 'include', 'scripts', 'src', 'tools', 'vendor', 'LICENSE'];
const LIBRARIES = inClone(`node_modules/@node-llama-cpp/linux-${process.arch}/bins/linux-${process.arch}`);
/** What make and ninja print for a part of the work that is done. */
const SHARE = /^\[\s*(?:(\d+)%|(\d+)\/(\d+))\]/;

export const llamaServer = {
  name: `llama-server (${PACKAGE})`,
  after: ['dependencies'],
  needs: ['git', 'tar', 'cmake', 'a C++ compiler', 'make or ninja'],
  upToDate({ cache }) {
    const { path, version } = cache.get('llamaServer') ?? {};
    return version === PACKAGE && existsSync(path);
  },
  async run({ cache }, step) {
    return withSources(cache, step, WANTED, async (sources, work) => {
      const build = join(work, 'build');
      const configure = [
        '-S',
        inClone('bench/llama-server'),
        '-B',
        build,
        `-DSOURCES=${sources}`,
        `-DLIBRARIES=${LIBRARIES}`,
      ];
      await run('cmake', configure);
      const onLine = (line) => {
        const [, percent, done, total] = SHARE.exec(line) ?? [];
        if (percent ?? done) step.share(percent ? percent / 100 : done / total, 'compiling');
      };
      await run('cmake', ['--build', build, '--parallel', String(availableParallelism())], { onLine });
      const copy = join(work, 'llama-server');
      mkdirSync(copy);
      // Beside the program: it looks for its back ends there.
      for (const name of readdirSync(LIBRARIES).filter((each) => each.endsWith('.so')))
        cpSync(join(LIBRARIES, name), join(copy, name));
      renameSync(join(build, 'llama-server'), join(copy, 'llama-server'));
      const folder = cache.path('llama-server', PACKAGE);
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(join(folder, '..'), { recursive: true });
      renameSync(copy, folder);
      // bench/llama-server.ts reads it.
      cache.set('llamaServer', { path: join(folder, 'llama-server'), version: PACKAGE });
      return 'built';
    });
  },
};
