/** The embedded broker as an OS process: private, versioned, restarted in place, never orphaned. */
import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import {
  connectNats,
  identify,
  isAlive,
  type NatsServer,
  type ProcessIdentity,
  startNatsServer,
} from '../../transport/index.js';
import { codeOf, elapse, natsBinary } from './kit.js';

async function endOf(target: ProcessIdentity, ms = 15_000): Promise<void> {
  const deadline = performance.now() + ms;
  while (isAlive(target)) {
    if (performance.now() > deadline) throw new Error(`process ${target.pid} still runs after ${ms} ms`);
    await elapse(20);
  }
}

function identity(pid: number): ProcessIdentity {
  const found = identify(pid);
  if (!found) throw new Error(`no process ${pid}`);
  return found;
}

describe('The embedded nats-server', function () {
  this.timeout(60_000);
  let dir: string;
  let server: NatsServer | undefined;
  const binary = natsBinary();
  const start = (more: object = {}) => startNatsServer({ binary, stateDir: dir, namespace: 'spec', ...more });

  beforeEach(() => {
    dir = mkdtempSync(path.join(tmpdir(), 'dynact-server-'));
  });
  afterEach(async () => {
    await server?.stop(1_000);
    server = undefined;
    rmSync(dir, { recursive: true, force: true });
  });

  it('keeps credentials in files of mode 0600 under a folder of mode 0700, and out of arguments and environment', async () => {
    server = await start();
    expect(statSync(dir).mode & 0o777).to.equal(0o700);
    for (const file of readdirSync(dir, { recursive: true, withFileTypes: true })) {
      if (file.isFile() && /\.(json|conf)$/.test(file.name) && !file.parentPath.includes('store')) {
        expect(statSync(path.join(file.parentPath, file.name)).mode & 0o777, file.name).to.equal(0o600);
      }
    }
    const { password } = server.credentials('decode');
    expect(password).to.match(/^[\w-]{43}$/);
    expect(password).to.not.equal(server.credentials('prefill').password);
    for (const about of ['cmdline', 'environ']) {
      expect(readFileSync(`/proc/${server.pid}/${about}`, 'utf8')).to.not.include(password);
    }
  });

  it('listens on loopback alone', async () => {
    server = await start();
    const listening = ['tcp', 'tcp6']
      .flatMap((table) => readFileSync(`/proc/net/${table}`, 'utf8').split('\n').slice(1))
      .map((line) => line.trim().split(/\s+/))
      .filter((fields) => fields[3] === '0A' && Number.parseInt(fields[1]?.split(':')[1] ?? '', 16) === server?.port);
    expect(listening.map((fields) => fields[1]?.split(':')[0])).to.deep.equal(['0100007F']);
  });

  it('comes back with the same port and passwords after it was killed', async () => {
    server = await start();
    const { port, pid } = server;
    const before = server.credentials('gateway');
    process.kill(pid, 'SIGKILL');
    await server.exited;
    server = await start();
    expect(server.port).to.equal(port);
    expect(server.pid).to.not.equal(pid);
    expect(server.credentials('gateway')).to.deep.equal(before);
  });

  it('ends within its deadline even if it is frozen, and stopping twice is harmless', async () => {
    server = await start();
    const running = identity(server.pid);
    process.kill(server.pid, 'SIGSTOP');
    await server.stop(300);
    await server.stop(300);
    expect(isAlive(running)).to.equal(false);
  });

  it('refuses a second starter in the same folder, naming the first', async () => {
    server = await start();
    expect(await codeOf(start())).to.equal('NET_STATE_IN_USE');
    expect(isAlive(identity(server.pid))).to.equal(true);
  });

  it('names the port that is in use', async () => {
    const other = createServer();
    const port = await new Promise<number>((resolve) => {
      other.listen(0, '127.0.0.1', () => resolve((other.address() as { port: number }).port));
    });
    expect(await codeOf(start({ port }))).to.equal('NET_PORT_IN_USE');
    other.close();
  });

  it('names the version it found when the executable is too old, and the path when there is none', async () => {
    const old = path.join(dir, 'old-nats');
    writeFileSync(old, '#!/bin/sh\necho "nats-server: v2.10.29"\n');
    chmodSync(old, 0o700);
    const error = await startNatsServer({ binary: old, stateDir: dir, namespace: 'spec' }).catch((e: Error) => e);
    expect(error).to.be.an('error').with.property('code', 'NET_VERSION_TOO_OLD');
    expect((error as Error).message)
      .to.include('2.10.29')
      .and.include('2.11');
    expect(await codeOf(start({ binary: '/nowhere/nats-server' }))).to.equal('NET_NO_BINARY');
    writeFileSync(old, '#!/bin/sh\necho hello\n');
    expect(await codeOf(start({ binary: old }))).to.equal('NET_NO_BINARY');
  });

  it('waits for a keeper that is slower than the server', async () => {
    const slow = path.join(dir, 'slow');
    mkdirSync(slow, { recursive: true });
    writeFileSync(path.join(slow, 'cat'), '#!/bin/sh\nsleep 1\nexec /bin/cat "$@"\n', { mode: 0o755 });
    const usual = process.env.PATH;
    process.env.PATH = `${slow}:${usual}`;
    try {
      server = await start();
      expect(server.pid).to.be.greaterThan(0);
    } finally {
      process.env.PATH = usual;
    }
  });

  it('reports the end of the log when the server dies at once', async () => {
    const broken = path.join(dir, 'broken-nats');
    writeFileSync(
      broken,
      '#!/bin/sh\nif [ "$1" = --version ]; then echo "nats-server: v2.12.0"; else echo "no luck today"; exit 3; fi\n',
    );
    chmodSync(broken, 0o700);
    const error = await startNatsServer({ binary: broken, stateDir: dir, namespace: 'spec' }).catch((e: Error) => e);
    expect(error).to.be.an('error').with.property('code', 'NET_SERVER_EXIT');
    expect((error as Error).message)
      .to.include('code 3')
      .and.include('no luck today');
  });

  it('says so when the credentials are wrong, and when a broker has no JetStream', async () => {
    server = await start();
    const { url, namespace, user } = server.credentials('node');
    expect(await codeOf(connectNats({ url, namespace, user, password: 'wrong' }))).to.equal('NET_UNAUTHORIZED');
    const port = await new Promise<number>((resolve) => {
      const probe = createServer().listen(0, '127.0.0.1', () => {
        const found = (probe.address() as { port: number }).port;
        probe.close(() => resolve(found));
      });
    });
    const plain = spawn(binary, ['-a', '127.0.0.1', '-p', String(port)], { stdio: 'ignore' });
    try {
      expect(await codeOf(connectNats({ url: `nats://127.0.0.1:${port}`, namespace: 'spec' }))).to.equal(
        'NET_NO_JETSTREAM',
      );
    } finally {
      plain.kill('SIGKILL');
    }
  });

  it('waits for a broker that starts later than its client', async () => {
    server = await start();
    const { port } = server;
    await server.stop();
    const credentials = server.credentials('node');
    const connecting = connectNats(credentials);
    server = await start({ port });
    const bus = await connecting;
    expect(bus.state).to.equal('up');
    await bus.close();
  });

  describe('whose starter is killed', () => {
    const index = pathToFileURL(path.resolve(import.meta.dirname, '../../transport/index.js')).href;

    /** A process that starts the broker and says its pid. */
    async function starter(orphanDeadlineMs: number): Promise<{ kill(): void; pid: number }> {
      const options = JSON.stringify({ binary, stateDir: dir, namespace: 'spec', orphanDeadlineMs });
      const code = `import { startNatsServer } from ${JSON.stringify(index)};
        const server = await startNatsServer(${options});
        process.stdout.write(server.pid + '\\n');
        setInterval(() => {}, 1000);`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      const pid = await new Promise<number>((resolve, reject) => {
        child.stdout.once('data', (data) => resolve(Number(data)));
        child.once('exit', () => reject(new Error('starter ended')));
      });
      return { pid, kill: () => child.kill('SIGKILL') };
    }

    /** A process that needs the broker: a child that drains. */
    async function holder(): Promise<() => void> {
      const code = `import { holdNatsServer } from ${JSON.stringify(index)};
        holdNatsServer(${JSON.stringify(path.join(dir, 'holders'))});
        process.stdout.write('held\\n');
        setInterval(() => {}, 1000);`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      await new Promise((resolve) => child.stdout.once('data', resolve));
      return () => child.kill('SIGKILL');
    }

    it('ends with it when nobody else holds it', async () => {
      const owner = await starter(60_000);
      const broker = identity(owner.pid);
      owner.kill();
      await endOf(broker);
    });

    it('lives on while a child still drains, and ends with the last one', async () => {
      const owner = await starter(60_000);
      const broker = identity(owner.pid);
      const release = await holder();
      owner.kill();
      await elapse(500);
      expect(isAlive(broker)).to.equal(true);
      release();
      await endOf(broker);
    });

    it('ends at the deadline even if a child never lets go', async () => {
      const owner = await starter(1_000);
      const broker = identity(owner.pid);
      const release = await holder();
      owner.kill();
      await endOf(broker);
      release();
    });

    it('is ended by the next start in the folder if it is still there', async () => {
      const owner = await starter(60_000);
      const broker = identity(owner.pid);
      const release = await holder();
      const starterProcess = identity(
        Number(readFileSync(`/proc/${owner.pid}/status`, 'utf8').match(/PPid:\t(\d+)/)?.[1]),
      );
      owner.kill();
      // The starter must be gone, or its claim on the folder stands; the keeper is its child and no claim.
      expect(isAlive(starterProcess)).to.equal(true);
      await startedAfter();
      expect(isAlive(broker)).to.equal(false);
      release();
    });

    /** Starts once the killed starter's entry has left the process table. */
    async function startedAfter(): Promise<void> {
      for (;;) {
        const code = await codeOf(
          start().then((started) => {
            server = started;
          }),
        );
        if (code === 'resolved') return;
        expect(code).to.equal('NET_STATE_IN_USE');
        await elapse(10);
      }
    }
  });
});
