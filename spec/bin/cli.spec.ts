import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { drawTree } from '../../bin/commands/status.js';
import type { NodeStatus, ProcessStatus } from '../../supervisors/index.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));

describe('The dynact command', function () {
  this.timeout(60_000);
  let cwd: string;
  beforeEach(async () => {
    cwd = await mkdtemp(join(tmpdir(), 'dynact-cli-'));
  });
  afterEach(() => rm(cwd, { recursive: true, force: true }));

  function dynact(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
    return new Promise((resolve) => {
      const child = execFile(process.execPath, [cli, ...args], { cwd }, (error, stdout, stderr) =>
        resolve({ code: error ? Number(error.code) : 0, stdout, stderr }),
      );
      child.stdin?.end();
    });
  }

  it('prints its version and a help with examples', async () => {
    expect((await dynact('--version')).stdout).to.match(/^\d+\.\d+\.\d+\n$/);
    const { code, stdout } = await dynact('--help');
    expect(code).to.equal(0);
    for (const text of ['up', 'status', 'chat', 'doctor', 'Examples:']) expect(stdout).to.contain(text);
    expect(stdout).not.to.contain('role');
  });

  it('suggests the nearest command and flag, and exits with 2', async () => {
    const command = await dynact('stauts');
    expect(command.code).to.equal(2);
    expect(command.stderr).to.contain('status');
    const flag = await dynact('up', '--prot', '9');
    expect(flag.code).to.equal(2);
    expect(flag.stderr).to.contain('--port');
  });

  it('says which setting is wrong before it starts anything', async () => {
    const { code, stdout, stderr } = await dynact('up', '--engine', 'mok');
    expect([code, stdout]).to.deep.equal([2, '']);
    expect(stderr).to.contain('engine.kind').and.contain('did you mean mock?');
  });

  it('refuses an option that is given without a value, by its name', async () => {
    for (const args of [
      ['up', '--state-dir', ''],
      ['status', '--state-dir', ''],
      ['up', '--config', ''],
      ['route', '--explain', ''],
    ]) {
      const { code, stdout, stderr } = await dynact(...args);
      expect([code, stdout]).to.deep.equal([2, '']);
      expect(stderr).to.equal(`dynact: ${args[1]} must not be empty\n`);
    }
    expect((await dynact('restart', '')).code).to.equal(2);
  });

  it('prints every setting with its origin, as text and as JSON', async () => {
    const { stdout } = await dynact('config', '--port', '9', '--json');
    const printed = JSON.parse(stdout) as Record<string, { value: unknown; origin: string; env: string }>;
    expect(printed['http.port']).to.deep.equal({ value: 9, origin: '--port', env: 'DYNACT_HTTP_PORT' });
    expect((await dynact('config')).stdout).to.match(/^http\.port +8000 +default$/m);
  });

  it('says that no node runs in the folder, for status and stop', async () => {
    for (const command of ['status', 'stop']) {
      const { code, stderr } = await dynact(command);
      expect(code).to.equal(1);
      expect(stderr)
        .to.match(/^dynact: no node is running in .*npm start/)
        .and.not.contain('    at ');
    }
  });

  it('refuses a restart that names nothing, or processes beside --rolling', async () => {
    for (const args of [[], ['decode-0', '--rolling'], ['decode-0', '--all']]) {
      const { code, stderr } = await dynact('restart', ...args);
      expect(code).to.equal(2);
      expect(stderr).to.contain('--rolling').and.not.contain('    at ');
    }
  });

  it('does not serve a role by hand', async () => {
    const { code, stderr } = await dynact('role', 'decode');
    expect(code).to.equal(64);
    expect(stderr).to.contain('dynact up');
  });

  it('draws the tree, one process a line, with colours only when asked', () => {
    const process = (change: Partial<ProcessStatus>): ProcessStatus => ({
      role: 'decode',
      instance: 'decode-0',
      pid: 7,
      state: 'up',
      restarts: 0,
      incarnation: 'decode-0-a',
      lastReason: null,
      stateMs: 61_000,
      failures: 0,
      retryMs: null,
      rssBytes: 1024 * 1024,
      facts: { inFlight: 3 },
      ...change,
    });
    const status = {
      node: 'host',
      url: 'http://127.0.0.1:8000',
      model: 'mock',
      engine: 'mock',
      uptimeMs: 3_700_000,
      deadLetters: 2,
      processes: [
        process({ role: 'node', instance: 'host' }),
        process({}),
        process({
          instance: 'decode-1',
          pid: null,
          state: 'restarting',
          restarts: 2,
          failures: 3,
          retryMs: 4200,
          lastReason: 'signal SIGKILL',
        }),
      ],
    } as unknown as NodeStatus;
    const [head, first, second] = drawTree(status, false).split('\n');
    expect(head).to.contain(
      'host  up  pid 7  1 MiB  http://127.0.0.1:8000  model mock (mock)  up 1 h 1 min  dead letters 2',
    );
    expect(first).to.match(/^├─ decode-0 +up 1 min +pid 7 +1 MiB +decode-0-a +inFlight 3$/);
    expect(second).to.match(
      /^└─ decode-1 +restarting 1 min \(crash loop: 3 failures, next try in 4 s\) +no process.*restarts 2.*last: signal SIGKILL$/,
    );
    expect(drawTree(status, false)).not.to.contain('\u001b');
    expect(drawTree(status, true)).to.contain('\u001b[31mrestarting');
  });
});
