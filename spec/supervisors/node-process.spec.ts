import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { isSupervisorError, resolveConfig } from '../../supervisors/index.js';
import type { Role } from '../../supervisors/ipc.js';
import { bindListener } from '../../supervisors/listener.js';
import { type OsProcess, osProcess, type ProcessSpec } from '../../supervisors/os-process.js';
import type { Running } from '../../supervisors/otp/index.js';
import { startTime } from '../../supervisors/state-dir.js';

const script = fileURLToPath(new URL('./node-stub-role.js', import.meta.url));

interface Watched {
  readonly child: OsProcess;
  readonly lines: string[];
  readonly exits: { incarnation: string; reason: string }[];
  pid(): number;
}

async function stub(model: string, change: Partial<ProcessSpec> & { role?: Role } = {}): Promise<Watched> {
  const { config } = await resolveConfig({ cwd: '/', env: {}, flags: { 'engine.kind': 'mock', 'node.drainMs': 200 } });
  const lines: string[] = [];
  const exits: { incarnation: string; reason: string }[] = [];
  let pid = 0;
  const role = change.role ?? 'decode';
  const child = osProcess({
    role,
    instance: `${role}-0`,
    script,
    silentMs: 60_000,
    stuckMs: 60_000,
    boot: (incarnation) => ({
      message: {
        role: role as 'decode',
        instance: `${role}-0`,
        incarnation,
        node: 'spec',
        namespace: 'spec',
        nats: { url: 'nats://127.0.0.1:1', user: 'u', pass: 'secret-of-the-spec' },
        config,
        model: { id: model, path: '', sourceHash: 'mock', format: 'mock' },
      },
    }),
    line: (text) => lines.push(text),
    spawned: (started) => {
      pid = started;
    },
    exited: (_, incarnation, reason) => exits.push({ incarnation, reason }),
    ...change,
  });
  return { child, lines, exits, pid: () => pid };
}

const never = new AbortController().signal;
const gone = (pid: number) => startTime(pid) <= 0;

describe('A process as a supervised child', function () {
  this.timeout(20_000);
  const running: Running[] = [];
  async function start(watched: Watched, abort = never): Promise<Running> {
    const life = await watched.child.start(abort);
    running.push(life);
    return life;
  }
  afterEach(async () => {
    for (const life of running.splice(0)) {
      life.kill();
      await life.exit;
    }
  });

  it('is ready when its tree is, and ends as shutdown when asked to stop', async () => {
    const watched = await stub('stub');
    const life = await start(watched);
    expect(life.incarnation).to.match(/^decode-0-[0-9a-z]{12,}$/);
    expect(gone(watched.pid())).to.equal(false);
    await life.stop(5000);
    expect(await life.exit).to.deep.equal({ kind: 'shutdown' });
    expect(gone(watched.pid())).to.equal(true);
    expect(watched.exits).to.deep.equal([{ incarnation: life.incarnation, reason: 'exit code 0' }]);
  });

  it('gets a new name that sorts later with each start', async () => {
    const watched = await stub('stub');
    const first = await start(watched);
    first.kill();
    expect(await first.exit).to.deep.equal({ kind: 'killed' });
    const second = await start(watched);
    expect(second.incarnation > first.incarnation).to.equal(true);
  });

  it('rejects with what the child said when it cannot start, and leaves nothing behind', async () => {
    for (const [model, text] of [
      ['refuse', 'no such weights'],
      ['vanish', 'exit code 3'],
    ] as const) {
      const watched = await stub(model);
      const error = await start(watched).then(
        () => undefined,
        (reason) => reason,
      );
      expect(isSupervisorError(error, 'SUP_START_FAILED')).to.equal(true);
      expect((error as Error).message).to.contain(text);
      expect(gone(watched.pid())).to.equal(true);
    }
  });

  it('is killed when its start is no longer wanted', async () => {
    const abort = new AbortController();
    const watched = await stub('stub', { spawned: () => abort.abort() });
    const error = await start(watched, abort.signal).then(
      () => undefined,
      (reason) => reason,
    );
    expect(isSupervisorError(error, 'SUP_START_FAILED')).to.equal(true);
    expect(watched.exits.map(({ reason }) => reason)).to.deep.equal(['signal SIGKILL']);
  });

  it('tells a kill from outside from an end by itself', async () => {
    const killed = await start(await stub('stub'));
    const watched = await stub('stub');
    const other = await start(watched);
    process.kill(watched.pid(), 'SIGKILL');
    expect(await other.exit).to.deep.equal({ kind: 'killed' });
    expect(watched.child.snapshot().lastExit).to.equal('signal SIGKILL');
    expect(await (await start(await stub('end'))).exit).to.deep.equal({ kind: 'normal' });
    killed.kill();
  });

  it('ends itself when it does not drain in time', async () => {
    const watched = await stub('stubborn');
    const life = await start(watched);
    const reason = await Promise.all([life.stop(50), life.exit]).then(([, exit]) => exit);
    expect(reason.kind).to.equal('killed');
    expect(watched.child.snapshot().lastExit).to.contain('did not drain within 50 ms');
  });

  it('is killed when its engine takes no step with work queued, though its event loop turns', async () => {
    const watched = await stub('stuck', { stuckMs: 1000 });
    const life = await start(watched);
    expect((await life.exit).kind).to.equal('killed');
    expect(watched.child.snapshot().lastExit).to.match(/^signal SIGKILL: the engine took no step for \d+ ms/);
  });

  it('is not taken for silent while it starts, however long that takes', async () => {
    const watched = await stub('slow', { silentMs: 1000, stuckMs: 1000 });
    const life = await start(watched);
    expect(watched.exits).to.deep.equal([]);
    life.kill();
  });

  it('is killed when it falls silent', async () => {
    const watched = await stub('stub', { silentMs: 1500 });
    const life = await start(watched);
    process.kill(watched.pid(), 'SIGSTOP');
    expect((await life.exit).kind).to.equal('killed');
    expect(watched.child.snapshot().lastExit).to.equal('signal SIGKILL: silent for 1500 ms');
  });

  it('passes on what the child writes, and keeps credentials out of arguments and environment', async () => {
    const watched = await stub('stub');
    const life = await start(watched);
    const { readFile } = await import('node:fs/promises');
    for (const file of ['cmdline', 'environ']) {
      const text = await readFile(join('/proc', String(watched.pid()), file), 'latin1');
      expect(text).to.contain('node').and.not.contain('secret-of-the-spec');
    }
    await life.stop(5000);
    expect(watched.lines).to.include('hello from decode-0');
  });

  it('shares one socket with its siblings, and the port stays open while one of them restarts', async () => {
    const listener = await bindListener('127.0.0.1', 0);
    const base = await stub('stub', { role: 'gateway' });
    expect(base.pid()).to.equal(0);
    const { config } = await resolveConfig({ cwd: '/', env: {}, flags: { 'engine.kind': 'mock' } });
    const gateway = (instance: string) =>
      stub('stub', {
        role: 'gateway',
        instance,
        boot: (incarnation) => ({
          handle: listener.handle,
          message: {
            role: 'gateway',
            url: `http://127.0.0.1:${listener.port}`,
            instance,
            incarnation,
            node: 'spec',
            namespace: 'spec',
            nats: { url: '', user: '', pass: '' },
            config,
            model: { id: 'stub', path: '', sourceHash: 'mock', format: 'mock' },
          },
        }),
      });
    const [a, b] = [await gateway('gateway-0'), await gateway('gateway-1')];
    const [first, second] = [await start(a), await start(b)];
    const answer = async () => (await fetch(`http://127.0.0.1:${listener.port}`)).text();
    const served = new Set([first.incarnation, second.incarnation]);
    expect(served.has((await answer()).split(' ')[1] as string)).to.equal(true);
    first.kill();
    second.kill();
    await Promise.all([first.exit, second.exit]);
    // Nobody listens now; the connection waits in the backlog until the next life takes it.
    const waiting = answer();
    const next = await start(a);
    expect((await waiting).split(' ')[1]).to.equal(next.incarnation);
    listener.close();
    next.kill();
    await next.exit;
    const refused = await answer().then(
      () => false,
      () => true,
    );
    expect(refused).to.equal(true);
  });

  it('names the port and the way out when the port is in use', async () => {
    const { createServer } = await import('node:net');
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const { port } = other.address() as { port: number };
    const error = await bindListener('127.0.0.1', port).then(
      () => undefined,
      (reason) => reason,
    );
    other.close();
    expect(isSupervisorError(error, 'SUP_PORT_IN_USE')).to.equal(true);
    expect((error as Error).message)
      .to.contain(String(port))
      .and.contain('--port')
      .and.contain('DYNACT_HTTP_PORT');
  });
});
