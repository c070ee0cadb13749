/** What `npm start` runs is not what the other specs run: the same code, bundled by set-up (bin/setup/bundle.mjs). */
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { writeTinyModel } from '../../gpu/index.js';
import { packageRoot } from '../bin/package-root.js';

const bundled = (name: string) => join(packageRoot(), 'dist/start', name);
const npmStart = () => bundled('dynact.js');

describe('the bundle that npm start runs', () => {
  let folder: string;
  const running: ChildProcess[] = [];
  before(function () {
    if (existsSync(npmStart())) return;
    console.log(`      skipped: ${npmStart()} is not there; npm run build makes it`);
    this.skip();
  });
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'dynact-bundle-'));
  });
  afterEach(async () => {
    for (const child of running.splice(0)) {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGTERM');
        await once(child, 'exit');
      }
    }
    rmSync(folder, { recursive: true, force: true });
  });

  it('serves through workers of its own, and ends in good order', async () => {
    const flags = ['up', '--engine', 'mock', '--model', 'mock', '--speedup', '0', '--port', '0'];
    const node = spawn(process.execPath, [npmStart(), ...flags, '--log-level', 'warn'], {
      cwd: folder,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    running.push(node);
    let said = '';
    const url = await new Promise<string>((resolve, reject) => {
      node.once('exit', () => reject(new Error('it ended before it was ready')));
      node.stdout.on('data', (text) => {
        said += text;
        const ready = /^dynact ready (\S+) /m.exec(said)?.[1];
        if (ready !== undefined) resolve(ready);
      });
    });
    const answer = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'mock', prompt: 'once upon', max_tokens: 5 }),
    });
    const body = (await answer.json()) as { readonly usage: { readonly completion_tokens: number } };
    expect(answer.status).to.equal(200);
    expect(body.usage.completion_tokens).to.equal(5);
    node.kill('SIGTERM');
    const [code] = (await once(node, 'exit')) as [number | null];
    expect(code).to.equal(0);
  });

  it('has beside it the process that converts weights', async () => {
    const source = join(folder, 'tiny.gguf');
    const target = join(folder, 'converted.gguf');
    writeTinyModel(source);
    const child = fork(bundled('child.js'), [], { stdio: 'ignore' });
    running.push(child);
    const q8 = 7;
    child.send({ source, target, ftype: q8, threads: 1, measureSource: false, measureTarget: false });
    const [answer] = await once(child, 'message');
    expect(answer).to.deep.equal({ type: 'converted' });
    expect(statSync(target).size).to.be.greaterThan(0);
  });
});
