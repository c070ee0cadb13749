import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { serveControl } from '../../supervisors/control.js';
import {
  isSupervisorError,
  lockHolder,
  type NodeStatus,
  nodeStatus,
  restartNode,
  stopNode,
} from '../../supervisors/index.js';
import { openStateDir, startTime } from '../../supervisors/state-dir.js';

const quiet = () => {};
const codeOf = (attempt: Promise<unknown>): Promise<unknown> =>
  attempt.then(
    () => 'accepted',
    (error) => (isSupervisorError(error) ? error.code : error),
  );

describe('The state folder of a node', function () {
  this.timeout(10_000);
  let root: string;
  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'dynact-state-'));
  });
  afterEach(() => rm(root, { recursive: true, force: true }));

  it('belongs to one node, and the refusal names its pid', async () => {
    const path = join(root, 'a', 'b');
    const state = await openStateDir(path, 0, quiet);
    expect((await stat(path)).mode & 0o777).to.equal(0o700);
    const error = await openStateDir(path, 0, quiet).catch((reason: Error) => reason);
    expect(isSupervisorError(error, 'SUP_NODE_RUNNING')).to.equal(true);
    expect((error as Error).message)
      .to.contain(`pid ${process.pid}`)
      .and.contain('--state-dir');
    await state.release();
    await (await openStateDir(path, 0, quiet)).release();
  });

  it('is closed to other users even if it was made open', async () => {
    const path = join(root, 'open');
    await mkdir(path, { mode: 0o755 });
    const state = await openStateDir(path, 0, quiet);
    expect((await stat(path)).mode & 0o777).to.equal(0o700);
    await state.release();
  });

  it('is taken over from a dead holder, from a reused pid and from a torn lock file', async () => {
    const dead = spawn('true');
    await once(dead, 'exit');
    const stale = [
      JSON.stringify({ pid: dead.pid, startedAt: 1, control: '' }),
      JSON.stringify({ pid: process.pid, startedAt: startTime(process.pid) - 1, control: '' }),
      '{"pid": 1',
      '',
    ];
    for (const text of stale) {
      await writeFile(join(root, 'node.lock'), text);
      const state = await openStateDir(root, 0, quiet);
      expect((await lockHolder(root))?.pid).to.equal(process.pid);
      await state.release();
      expect(await lockHolder(root)).to.equal(undefined);
    }
  });

  it('goes to exactly one of many that see the same stale lock', async () => {
    await writeFile(join(root, 'node.lock'), 'stale');
    // Opened by processes of their own: the lock is a matter between processes.
    const script = `import { openStateDir } from ${JSON.stringify(new URL('../../supervisors/state-dir.js', import.meta.url).href)};
      try { await openStateDir(${JSON.stringify(root)}, 0, () => {}); process.stdout.write('mine'); process.stdin.resume(); }
      catch (error) { process.stdout.write(error.code ?? String(error)); process.exit(0); }`;
    const rivals = Array.from({ length: 4 }, () =>
      spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['pipe', 'pipe', 'inherit'] }),
    );
    const answers = await Promise.all(rivals.map(async (rival) => String((await once(rival.stdout, 'data'))[0])));
    for (const rival of rivals) rival.kill('SIGKILL');
    expect(answers.filter((answer) => answer === 'mine').length).to.equal(1);
    expect(answers.filter((answer) => answer === 'SUP_NODE_RUNNING').length).to.equal(3);
  });

  it('waits for what an earlier node left running, then ends it', async () => {
    const left = spawn('sleep', ['60']);
    await once(left, 'spawn');
    const pid = left.pid as number;
    await writeFile(join(root, 'children.json'), JSON.stringify([{ pid, startedAt: startTime(pid) }]));
    const notes: string[] = [];
    const exit = once(left, 'exit');
    const state = await openStateDir(root, -1900, (text) => notes.push(text));
    expect((await exit)[1]).to.equal('SIGKILL');
    expect(notes.join('\n')).to.contain(String(pid));
    await state.release();
  });

  it('leaves a process alone whose pid is that of an earlier child but which began at another time', async () => {
    await writeFile(join(root, 'children.json'), JSON.stringify([{ pid: process.pid, startedAt: 1 }]));
    await (await openStateDir(root, 0, quiet)).release();
  });

  describe('with a control socket', () => {
    const status = { node: 'n', url: 'http://127.0.0.1:1', processes: [] } as unknown as NodeStatus;

    it('answers status, keeps the connection of a stop until the node has ended, and drops garbage', async () => {
      const state = await openStateDir(root, 0, quiet);
      let asked: boolean | undefined;
      const close = await serveControl(state.control, {
        status: async () => status,
        stop: (now) => {
          asked = now;
        },
        fault: quiet,
        restart: async () => {},
        ask: async () => [],
      });
      expect((await stat(state.control)).mode & 0o777).to.equal(0o600);
      expect(await nodeStatus(root)).to.deep.equal(status);

      const garbage = connect(state.control);
      garbage.write('x'.repeat(300_000));
      garbage.on('error', quiet);
      await new Promise<void>((closed) => garbage.once('close', () => closed()));
      const wrong = connect(state.control);
      wrong.write('{"type":"reboot"}\n');
      expect(String((await once(wrong, 'data'))[0])).to.contain('unknown request');

      let ended = false;
      const stopping = stopNode(root, true, 5000).then(() => {
        ended = true;
      });
      expect(await nodeStatus(root)).to.deep.equal(status);
      while (asked === undefined) await nodeStatus(root);
      expect([asked, ended]).to.deep.equal([true, false]);
      close();
      await stopping;
      await state.release();
    });

    it('gives a restart up when the node says nothing any more, and not while it says that it lives', async () => {
      const state = await openStateDir(root, 0, quiet);
      const order = { instances: [], all: false, inPlace: false };
      // A frozen process: its system still takes connections, and whatever is written to them.
      const frozen = createServer((socket) => socket.resume());
      await new Promise<void>((listening) => frozen.listen(state.control, listening));
      expect(await codeOf(restartNode(root, order, quiet, 200))).to.equal('SUP_NO_NODE');
      await new Promise((closed) => frozen.close(closed));

      let steps: (() => void) | undefined;
      const close = await serveControl(state.control, {
        status: async () => status,
        stop: quiet,
        fault: quiet,
        restart: () =>
          new Promise((resolve) => {
            steps = resolve;
          }),
        ask: async () => [],
      });
      const restarting = restartNode(root, order, quiet, 1_500);
      // Twice as long as it may be silent.
      await new Promise((resolve) => setTimeout(resolve, 3_000));
      steps?.();
      await restarting;
      close();
      await state.release();
    });

    it('says that no node runs when nobody holds the lock', async () => {
      expect(await codeOf(nodeStatus(root))).to.equal('SUP_NO_NODE');
      expect(await codeOf(stopNode(root, false, 1000))).to.equal('SUP_NO_NODE');
    });

    it('works in a folder whose path is too long for a socket', async () => {
      const path = join(root, 'x'.repeat(120));
      const state = await openStateDir(path, 0, quiet);
      const close = await serveControl(state.control, {
        status: async () => status,
        stop: quiet,
        fault: quiet,
        restart: async () => {},
        ask: async () => [],
      });
      expect(await nodeStatus(path)).to.deep.equal(status);
      close();
      await state.release();
      expect(await readFile(state.control).catch(() => 'gone')).to.equal('gone');
    });
  });
});
