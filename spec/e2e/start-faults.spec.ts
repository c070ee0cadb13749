import { chmod, copyFile, mkdir, mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { cacheFolder, resolveToolchain } from '../../supervisors/toolchain.js';
import { ask } from './client.js';
import { beginNode, endNodes, failToStart, ready, survivors, until } from './node-kit.js';

/** What people read when it fails: the last line, which is no log record and holds no stack. */
function lastLine(log: string): string {
  const lines = log.trim().split('\n');
  expect(lines.filter((line) => /^\s+at /.test(line))).to.deep.equal([]);
  return lines.at(-1) as string;
}

describe('A node that cannot start', function () {
  this.timeout(120_000);
  let cache: string;
  beforeEach(async () => {
    cache = await mkdtemp(join(tmpdir(), 'dynact-cache-'));
  });
  afterEach(async () => {
    await endNodes();
    await rm(cache, { recursive: true, force: true });
  });

  /** A cache folder whose manifest names this nats-server. */
  async function withServer(path: string): Promise<void> {
    const manifest = JSON.parse(await readFile(join(cacheFolder(), 'manifest.json'), 'utf8'));
    const changed = { ...manifest, natsServer: { ...manifest.natsServer, path } };
    await writeFile(join(cache, 'manifest.json'), JSON.stringify(changed));
  }

  it('says that nats-server is missing, and how to get it', async () => {
    await withServer(join(cache, 'nats-server'));
    const { code, log } = await failToStart([], { env: { DYNACT_CACHE: cache } });
    expect(code).to.equal(1);
    expect(lastLine(log)).to.contain('nats-server').and.contain('npm run setup');
  });

  it('says that nats-server is too old, which version it is and which is needed', async () => {
    const path = join(cache, 'nats-server');
    await writeFile(path, '#!/bin/sh\necho "nats-server: v2.9.25"\n');
    await chmod(path, 0o755);
    await withServer(path);
    const { code, log } = await failToStart([], { env: { DYNACT_CACHE: cache } });
    expect(code).to.equal(1);
    expect(lastLine(log)).to.contain('2.9.25').and.contain('2.11').and.contain('npm run setup');
  });

  it('says that nats-server ends at once, and why', async () => {
    const path = join(cache, 'nats-server');
    await writeFile(
      path,
      '#!/bin/sh\n[ "$1" = --version ] && echo "nats-server: v2.15.1" && exit 0\necho "no luck today" >&2\nexit 3\n',
    );
    await chmod(path, 0o755);
    await withServer(path);
    const { code, log } = await failToStart([], { env: { DYNACT_CACHE: cache } });
    expect(code).to.equal(1);
    expect(lastLine(log)).to.contain('nats-server').and.contain('no luck today');
  });

  /** The real nats-server, each life of which is killed after a second. */
  async function mortalServer(): Promise<void> {
    const path = join(cache, 'nats-server');
    const { natsServer } = resolveToolchain();
    await writeFile(
      path,
      `#!/bin/sh\n[ "$1" = --version ] && exec ${natsServer} --version\nexec timeout -s KILL 1 ${natsServer} "$@"\n`,
    );
    await chmod(path, 0o755);
    await withServer(path);
  }

  it('gives up on a nats-server that dies again and again, whether it came up meanwhile or not, and names it', async () => {
    await mortalServer();
    const since = performance.now();
    const { code, log } = await failToStart([], { env: { DYNACT_CACHE: cache, DYNACT_RESTART_INTENSITY: '3' } });
    expect(code).to.be.oneOf([1, 3]);
    expect(lastLine(log)).to.match(code === 1 ? /nats could not start: signal SIGKILL/ : /gave up.* of nats/);
    expect(performance.now() - since).to.be.lessThan(45_000);
  });

  it('says which model file is missing, is no model, or is cut short', async () => {
    const missing = await failToStart(['--engine', 'llama', '--model', join(cache, 'none.gguf')]);
    expect([missing.code, missing.url]).to.deep.equal([1, '']);
    expect(lastLine(missing.log)).to.contain('none.gguf').and.contain('no such file');

    const junk = join(cache, 'junk.gguf');
    await writeFile(junk, 'this is no model');
    const foreign = await failToStart(['--engine', 'llama', '--model', junk], { env: { DYNACT_CACHE: cache } });
    expect(foreign.code).to.equal(1);
    expect(lastLine(foreign.log)).to.contain('junk.gguf');
  });

  it('refuses the default model cut in half', async function () {
    let source: string;
    try {
      source = resolveToolchain().defaultModel.source;
    } catch (error) {
      console.log(`      skipped: ${(error as Error).message}`);
      return this.skip();
    }
    const cut = join(cache, 'cut.gguf');
    await mkdir(cache, { recursive: true });
    await copyFile(source, cut);
    const file = await open(cut, 'r+');
    const { size } = await file.stat();
    await file.truncate(Math.floor(size / 2));
    await file.close();
    // The server is the real one; converted weights of this file, if any, go into the temporary cache.
    await copyFile(join(cacheFolder(), 'manifest.json'), join(cache, 'manifest.json'));
    const { code, log, url } = await failToStart(['--engine', 'llama', '--model', cut], {
      env: { DYNACT_CACHE: cache },
    });
    expect([code, url]).to.deep.equal([1, '']);
    expect(lastLine(log)).to.contain('cut.gguf');
  });
});

describe('A node that is hindered while it starts', function () {
  this.timeout(120_000);
  afterEach(endNodes);

  it('starts what was killed again, worker, gateway and broker alike, and serves', async () => {
    const node = await beginNode(['--decode', '2']);
    for (const instance of ['nats', 'decode-1', 'gateway-0']) {
      const pid = await until(`${instance} on its way`, async () => {
        const now = await node.processOf(instance).catch(() => undefined);
        return now?.pid ?? undefined;
      });
      process.kill(pid, 'SIGKILL');
    }
    await ready(node);
    const { processes } = await node.status();
    expect(processes.map(({ instance, state }) => `${instance} ${state}`).slice(1)).to.deep.equal(
      ['nats', 'prefill-0', 'decode-0', 'decode-1', 'gateway-0'].map((instance) => `${instance} up`),
    );
    const { status } = await ask(node.url, { prompt: 'one two', max_tokens: 3 });
    expect(status).to.equal(200);
  });

  it('is called off by a signal, leaves nothing behind, and its folder can be used', async () => {
    const node = await beginNode([]);
    await until(
      'a worker on its way',
      async () => (await node.processOf('decode-0').catch(() => undefined))?.pid ?? undefined,
    );
    expect(await node.stop('SIGTERM')).to.equal(0);
    expect(node.url).to.equal('');
    expect(survivors(node)).to.deep.equal([]);
    const next = await beginNode([], { folder: node.folder });
    await ready(next);
    expect(await next.stop()).to.equal(0);
  });
});
