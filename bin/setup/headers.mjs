// libllama's headers, of exactly the version of its prebuilt files. They are in no package as files; the npm package
// node-llama-cpp carries the sources as a git bundle.
import { cpSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { filesBelow, signature } from './clone.mjs';
import { fetchPinned } from './download.mjs';
import { run } from './processes.mjs';

/** llama.cpp's sources, of the version of the prebuilt libraries. */
export const PACKAGE = 'node-llama-cpp@3.22.1';
const BUNDLE_SHA256 = '5f5d1105d5df040738d87b8290e5d17e7362131cdcfdb0831618e0ea528b4a51';
/** Of the headers as copied below. */
const TREE = '775c16095b7b274bac6ef9f8711a4ba680fd0ba1cbd402118dccd072211bcc29';
/** In the sources → in the cache. */
const WANTED = [
  ['include', 'include'],
  ['ggml/include', 'ggml/include'],
  ['vendor/hash/xxhash', 'vendor/hash/xxhash'],
  ['LICENSE', 'LICENSE'],
];

/** Where CMake finds them. */
export const headersFolder = (cache) => cache.path('headers', PACKAGE);

export const headers = {
  name: `libllama headers (${PACKAGE})`,
  needs: ['git', 'tar'],
  upToDate: ({ cache }) => treeOf(headersFolder(cache)) === TREE,
  async run({ cache }, step) {
    return withSources(
      cache,
      step,
      WANTED.map(([from]) => from),
      (sources, work) => {
        const copy = join(work, 'headers');
        for (const [from, to] of WANTED) cpSync(join(sources, from), join(copy, to), { recursive: true });
        const tree = treeOf(copy);
        if (tree !== TREE) throw new Error(`the headers of ${PACKAGE} hash to ${tree}, not ${TREE}`);
        const folder = headersFolder(cache);
        rmSync(folder, { recursive: true, force: true });
        mkdirSync(join(folder, '..'), { recursive: true });
        renameSync(copy, folder);
        cache.set('llamaHeaders', { path: folder, version: PACKAGE });
        return 'extracted';
      },
    );
  },
};

/** Runs `work(sources, folder)` on these paths of the sources; both folders are gone afterwards. */
export async function withSources(cache, step, paths, work) {
  mkdirSync(cache.path('tmp'), { recursive: true });
  const folder = mkdtempSync(cache.path('tmp', 'sources-'));
  try {
    const bundle = join(folder, 'gitRelease.bundle');
    await fetchPinned(cache, { dest: bundle, sha256: BUNDLE_SHA256, sources: [fromNpm(folder)] }, step);
    const sources = join(folder, 'sources');
    await run('git', ['clone', '--quiet', '--no-checkout', bundle, sources]);
    await run('git', ['-C', sources, 'checkout', '--quiet', 'HEAD', '--', ...paths]);
    return await work(sources, folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function fromNpm(work) {
  return {
    name: 'npm registry',
    async fetch(partial) {
      await run('npm', ['pack', PACKAGE, '--silent', '--ignore-scripts', '--pack-destination', work], { cwd: work });
      const [filename] = readdirSync(work).filter((name) => name.endsWith('.tgz'));
      const member = 'package/llama/gitRelease.bundle';
      await run('tar', ['-xzf', join(work, filename), '-C', work, member]);
      renameSync(join(work, member), partial);
    },
  };
}

function treeOf(folder) {
  const files = filesBelow(folder, () => true);
  return signature(files, [], folder);
}
