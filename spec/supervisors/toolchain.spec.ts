import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { isSupervisorError } from '../../supervisors/errors.js';
import { cacheFolder, resolveToolchain } from '../../supervisors/toolchain.js';
import { packageRoot } from '../bin/package-root.js';

describe('toolchain', () => {
  let folder: string;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-toolchain-'));
  });

  afterEach(() => {
    rmSync(folder, { recursive: true });
  });

  const entry = (name: string, content = '') => {
    const path = join(folder, name);
    writeFileSync(path, content);
    return path;
  };
  const manifest = (value: unknown) => entry('manifest.json', JSON.stringify(value));
  const failure = () => {
    try {
      resolveToolchain({ DYNACT_CACHE: folder });
    } catch (error) {
      if (isSupervisorError(error, 'SUP_TOOLCHAIN')) return error.message;
      throw error;
    }
    throw new Error('no error');
  };

  it('finds nats-server and the default model where the manifest of set-up says', () => {
    const natsServer = entry('nats-server');
    const source = entry('model.gguf');
    manifest({
      version: 1,
      natsServer: { path: natsServer },
      model: { id: 'tiny', path: source, sha256: 'ab', bytes: 0 },
    });
    expect(resolveToolchain({ DYNACT_CACHE: folder })).to.deep.equal({
      natsServer,
      defaultModel: { id: 'tiny', source, sha256: 'ab' },
      cacheDir: folder,
    });
  });

  it('says which file is missing and to run set-up when the cache folder is empty', () => {
    expect(failure()).to.equal(`${join(folder, 'manifest.json')} cannot be read: run \`npm run setup\``);
  });

  it('says which file is gone when it was deleted after set-up', () => {
    manifest({ version: 1, natsServer: { path: join(folder, 'deleted') } });
    expect(failure()).to.equal(`nats-server ${join(folder, 'deleted')} is gone: run \`npm run setup\``);
  });

  it('refuses a manifest without a model, one of another version, and one that is not JSON', () => {
    manifest({ version: 1, natsServer: { path: entry('nats-server') } });
    expect(failure()).to.contain('has no default model');
    manifest({ version: 2 });
    expect(failure()).to.contain('another version');
    entry('manifest.json', '{"version": 1');
    expect(failure()).to.contain('is not JSON');
  });

  it('looks for the cache in DYNACT_CACHE, then XDG_CACHE_HOME, then ~/.cache, as set-up does', async () => {
    const setup = await import(pathToFileURL(join(packageRoot(), 'bin/setup/cache.mjs')).href);
    const environments = [{ DYNACT_CACHE: '/a', XDG_CACHE_HOME: '/b' }, { XDG_CACHE_HOME: '/b' }, {}];
    const wanted = ['/a', '/b/dynact', join(homedir(), '.cache/dynact')];
    expect(environments.map((env) => cacheFolder(env))).to.deep.equal(wanted);
    expect(environments.map((env) => setup.cacheFolder(env))).to.deep.equal(wanted);
  });
});
