// One file for what `npm start` runs, or nearly: reading a thousand small modules one after the other takes each process of a node
// longer than everything else it does to start.
import { existsSync, rmSync } from 'node:fs';
import { writeAtomic } from './cache.mjs';
import { inClone, readText, signature } from './clone.mjs';
import { typescript } from './typescript.mjs';

const FOLDER = inClone('dist/start');
const STAMP = inClone('dist/start/set-up.stamp');

export const bundle = {
  name: 'bundle',
  after: ['typescript'],
  needs: [],
  upToDate: () => typescript.upToDate() && existsSync(STAMP) && readText(STAMP) === wanted(),
  async run() {
    const { build } = await import('esbuild');
    const key = wanted();
    rmSync(FOLDER, { recursive: true, force: true });
    await build({
      entryPoints: [
        { in: inClone('dist/bin/dynact.js'), out: 'dynact' },
        // Started by its file name, beside the file that starts it.
        { in: inClone('dist/gpu/weights/child.js'), out: 'child' },
      ],
      outdir: FOLDER,
      bundle: true,
      splitting: true,
      format: 'esm',
      platform: 'node',
      target: 'node20',
      // Loaded only where a collector of traces is configured, and by names that they make up as they run.
      external: ['@opentelemetry/sdk-node', '@opentelemetry/exporter-trace-otlp-http'],
      // CommonJS packages ask for Node's own modules by `require`.
      banner: {
        js: "import { createRequire as ownRequire } from 'node:module';\nconst require = ownRequire(import.meta.url);",
      },
      logLevel: 'warning',
    });
    writeAtomic(STAMP, key);
    return 'bundled';
  },
};

function wanted() {
  const { version } = JSON.parse(readText(inClone('node_modules/esbuild/package.json')) ?? '{}');
  return signature([inClone('package-lock.json')], [readText(inClone('dist/set-up.stamp')) ?? '', version ?? '']);
}
