import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { packageRoot } from './package-root.js';

/** The parts of bin/setup/*.mjs that are called here; they run before any compiler is installed, so they have no types. */
interface Platform {
  refusal(platform: { os: string; cpu: string; glibc?: string; node: string }): string | undefined;
}
interface Cache {
  readonly folder: string;
}
interface Source {
  readonly name: string;
  fetch(partial: string, step: Step): Promise<void>;
}
interface Step {
  note(text: string): void;
  progress(done: number, total: number): void;
}
interface Caching {
  openCache(folder: string): Cache;
  exclusively<T>(folder: string, onWait: () => void, work: () => T | Promise<T>, waitMs?: number): Promise<T>;
}
interface Download {
  fetchPinned(
    cache: Cache,
    wanted: { dest: string; sha256: string; sources: readonly Source[] },
    step: Step,
  ): Promise<string | undefined>;
  fromUrl(name: string, url: string): Source;
}
interface Tools {
  ensureTools(
    names: readonly string[],
    report: { line(text: string): void },
    options: { uid: number; install(command: string, args: readonly string[]): Promise<void> },
  ): Promise<void>;
}

const setupFile = (name: string) => join(packageRoot(), 'bin', name);
const load = async <T>(name: string): Promise<T> =>
  (await import(pathToFileURL(setupFile(`setup/${name}.mjs`)).href)) as T;

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

const failure = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work;
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error('it did not fail');
};

describe('set-up', () => {
  let folder: string;
  const ended: (() => void)[] = [];

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-setup-'));
  });

  afterEach(() => {
    for (const end of ended.splice(0)) end();
    rmSync(folder, { recursive: true });
  });

  describe('on the wrong machine', () => {
    const fit = { os: 'linux', cpu: 'x64', glibc: '2.36', node: '20.19.0' };

    it('refuses every platform but Linux x64 and arm64 with glibc, and prints the container command', async () => {
      const { refusal } = await load<Platform>('platform');
      const { glibc, ...musl } = fit;
      const cases = [
        [{ ...musl, os: 'darwin', cpu: 'arm64' }, 'this is darwin/arm64'],
        [{ ...musl, os: 'win32' }, 'this is win32/x64'],
        [{ ...fit, cpu: 'riscv64' }, 'this is linux/riscv64'],
        [musl, 'another C library than glibc'],
        [{ ...fit, glibc: '2.31' }, 'this is glibc 2.31'],
      ] as const;
      for (const [platform, reason] of cases) {
        const text = refusal(platform);
        expect(text).to.contain(reason);
        expect(text).to.contain('docker build -t dynact .');
        expect(text).to.match(/docker run .* dynact\n$/);
      }
      expect(glibc).to.equal('2.36');
    });

    it('refuses an old Node with where to get a newer one, and accepts 20.19, 22 and 24 on both processors', async () => {
      const { refusal } = await load<Platform>('platform');
      expect(refusal({ ...fit, node: '18.20.4' })).to.contain('Install Node 22');
      expect(refusal({ ...fit, node: '20.18.9' })).to.contain('this is Node 20.18.9');
      for (const node of ['20.19.0', '22.0.0', '24.11.1']) {
        for (const cpu of ['x64', 'arm64'])
          expect(refusal({ ...fit, cpu, node }), `${node} ${cpu}`).to.equal(undefined);
      }
    });
  });

  describe('run again', () => {
    it('finds everything done in less than 0.7 s of CPU, says nothing and needs no network', async function () {
      this.timeout(60_000);
      // Proxies that lead nowhere: a download would fail. Coverage is not what a user pays for.
      const { NODE_V8_COVERAGE: _, ...rest } = process.env;
      const env = { ...rest, HTTPS_PROXY: 'http://127.0.0.1:9', npm_config_registry: 'http://127.0.0.1:9' };
      const reportCpu = `data:text/javascript,process.on('exit', () => {
        const { user, system } = process.cpuUsage();
        process.stdout.write(String((user + system) / 1000));
      })`.replaceAll('\n', ' ');
      const times: number[] = [];
      for (let round = 0; round < 3; round++) {
        const args = ['--import', reportCpu, setupFile('setup.mjs'), '--check'];
        const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { env });
        expect(stdout).to.match(/^[0-9.]+$/);
        expect(stderr).to.equal('');
        times.push(Number(stdout));
      }
      // The least of three: what shares the cores costs caches.
      expect(Math.min(...times)).to.be.within(1, 700);
    });
  });

  describe('downloads', () => {
    const file = randomBytes(300_000);
    const silent: Step = { note: () => {}, progress: () => {} };

    /** A web server on a free port; `answer` may be replaced while it runs. */
    const serve = async (answer: (request: IncomingMessage, response: ServerResponse) => void) => {
      const server: Server = createServer((request, response) => {
        response.on('error', () => {});
        answer(request, response);
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      ended.push(() => {
        server.closeAllConnections();
        server.close();
      });
      return `http://127.0.0.1:${(server.address() as AddressInfo).port}/model.gguf`;
    };

    const place = async () => {
      const { openCache } = await load<Caching>('cache');
      return { cache: openCache(folder), dest: join(folder, 'models', 'model.gguf'), sha256: sha256(file) };
    };

    it('fetch a file once, and again when what is in the cache was damaged', async () => {
      const { fetchPinned, fromUrl } = await load<Download>('download');
      let requests = 0;
      const url = await serve((_, response) => {
        requests += 1;
        response.end(file);
      });
      const { cache, dest, sha256 } = await place();
      const notes: string[] = [];
      const get = () =>
        fetchPinned(
          cache,
          { dest, sha256, sources: [fromUrl('web', url)] },
          { ...silent, note: (text) => notes.push(text) },
        );

      expect(await get()).to.equal('web');
      expect(await get()).to.equal(undefined);
      expect(requests).to.equal(1);

      const damaged = Buffer.from(file);
      damaged.writeUInt8(damaged.readUInt8(1000) ^ 1, 1000);
      writeFileSync(dest, damaged);
      expect(await get()).to.equal('web');
      expect(notes).to.deep.equal(['model.gguf in the cache is damaged: fetching it again']);
      expect(readFileSync(dest).equals(file)).to.equal(true);
      expect(requests).to.equal(2);
    });

    it('never give the name to bytes with another hash, and take the next source', async () => {
      const { fetchPinned, fromUrl } = await load<Download>('download');
      const wrong = await serve((_, response) => response.end(file.subarray(1)));
      const right = await serve((_, response) => response.end(file));
      const { cache, dest, sha256 } = await place();
      const sources = [fromUrl('wrong', wrong), fromUrl('right', right)];
      expect(await fetchPinned(cache, { dest, sha256, sources }, silent)).to.equal('right');
      expect(readdirSync(join(folder, 'models'))).to.deep.equal(['model.gguf']);
    });

    it('say for each source why it failed when none has the file', async () => {
      const { fetchPinned, fromUrl } = await load<Download>('download');
      const wrong = await serve((_, response) => response.end('nonsense'));
      const absent = await serve((_, response) => response.writeHead(404).end());
      const { cache, dest, sha256 } = await place();
      const sources = [fromUrl('wrong', wrong), fromUrl('absent', absent)];
      const text = await failure(fetchPinned(cache, { dest, sha256, sources }, silent));
      expect(text).to.contain('could not get model.gguf');
      expect(text).to.match(/wrong: its SHA-256 is [0-9a-f]{64}, not /);
      expect(text).to.contain('absent: HTTP status 404');
      expect(existsSync(dest)).to.equal(false);
    });

    it('go on where a broken connection ended', async () => {
      const { fetchPinned, fromUrl } = await load<Download>('download');
      const half = file.length / 2;
      let broken = true;
      const ranges: (string | undefined)[] = [];
      const url = await serve((request, response) => {
        ranges.push(request.headers.range);
        if (broken) {
          response.writeHead(200, { 'content-length': file.length });
          response.write(file.subarray(0, half), () => setImmediate(() => response.destroy()));
          return;
        }
        const from = Number(/bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1]);
        response.writeHead(206, { 'content-length': file.length - from }).end(file.subarray(from));
      });
      const { cache, dest, sha256 } = await place();
      const get = () => fetchPinned(cache, { dest, sha256, sources: [fromUrl('web', url)] }, silent);

      await failure(get());
      const have = readFileSync(`${dest}.web.part`).length;
      expect(have).to.be.within(1, half);
      broken = false;
      expect(await get()).to.equal('web');
      expect(ranges).to.deep.equal([undefined, `bytes=${have}-`]);
      expect(readFileSync(dest).equals(file)).to.equal(true);
    });
  });

  describe('two at once', () => {
    it('work on one cache one after the other', async () => {
      const { exclusively } = await load<Caching>('cache');
      const events: string[] = [];
      let finish = () => {};
      const first = exclusively(
        folder,
        () => {},
        async () => {
          events.push('first begins');
          await new Promise<void>((resolve) => {
            finish = resolve;
          });
          events.push('first ends');
        },
      );
      const second = exclusively(
        folder,
        () => {
          events.push('second waits');
          finish();
        },
        () => {
          events.push('second begins');
        },
      );
      await Promise.all([first, second]);
      expect(events).to.deep.equal(['first begins', 'second waits', 'first ends', 'second begins']);
    });

    it('one killed with -9 leaves nothing that stops the next', async () => {
      const { exclusively } = await load<Caching>('cache');
      const script = `
        const { exclusively } = await import(${JSON.stringify(pathToFileURL(setupFile('setup/cache.mjs')).href)});
        await exclusively(${JSON.stringify(folder)}, () => {}, () => new Promise(() => { console.log('held'); setInterval(() => {}, 1000); }));`;
      const child: ChildProcess = spawn(process.execPath, ['--input-type=module', '-e', script], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      ended.push(() => child.kill('SIGKILL'));
      if (child.stdout) await once(child.stdout, 'data');
      let waited = false;
      const got = await exclusively(
        folder,
        () => {
          waited = true;
          child.kill('SIGKILL');
        },
        () => 'got it',
      );
      expect([got, waited]).to.deep.equal(['got it', true]);
    });

    it('the one that waits gives up at its deadline and names the folder', async () => {
      const { exclusively } = await load<Caching>('cache');
      const text = await exclusively(
        folder,
        () => {},
        () =>
          failure(
            exclusively(
              folder,
              () => {},
              () => 'never',
              60,
            ),
          ),
      );
      expect(text).to.contain(`another set-up has been using ${folder}`);
    });
  });

  describe('without a compiler', () => {
    const path = process.env.PATH;

    /** A machine whose only program is a package manager. */
    const only = (program: string) => {
      const bin = join(folder, 'bin');
      mkdirSync(bin);
      writeFileSync(join(bin, program), '#!/bin/sh\nexit 0\n');
      chmodSync(join(bin, program), 0o755);
      process.env.PATH = bin;
    };

    afterEach(() => {
      process.env.PATH = path;
    });

    const install = async () => {
      throw new Error('not asked to install');
    };
    const quiet = { line: () => {} };

    it('gives the exact command of this system', async () => {
      const { ensureTools } = await load<Tools>('tools');
      only('dnf');
      const text = await failure(ensureTools(['cmake', 'a C++ compiler'], quiet, { uid: 0, install }));
      expect(text).to.contain('missing: cmake, a C++ compiler\n');
      expect(text).to.contain('\n  sudo dnf install -y cmake gcc-c++\n');
    });

    it('installs with apt-get as root after saying so, and as another user only gives the command', async () => {
      const { ensureTools } = await load<Tools>('tools');
      only('apt-get');
      const wanted = 'apt-get install -y --no-install-recommends cmake git';
      expect(await failure(ensureTools(['cmake', 'git'], quiet, { uid: 1000, install }))).to.contain(
        `\n  sudo ${wanted}\n`,
      );

      const events: string[] = [];
      const asRoot = ensureTools(
        ['cmake', 'git'],
        { line: (text) => events.push(text.trim()) },
        {
          uid: 0,
          install: async (command, args) => {
            events.push([command, ...args].join(' '));
          },
        },
      );
      expect(await failure(asRoot)).to.contain('cmake, git still missing after');
      expect(events).to.deep.equal([
        `cmake, git missing; running as root, so set-up installs: ${wanted}`,
        'apt-get update -q',
        wanted,
      ]);
    });
  });
});
