/** How long a user waits from `npm start` to the first token, when set-up was done before. */
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { packageRoot } from '../supervisors/index.js';
import type { Bench } from './bench.js';
import { openFirstTokenClient } from './first-token.js';
import { figure } from './outcome.js';
import { says, start } from './processes.js';
import { median } from './statistics.js';

export const startupBench: Bench = {
  summary: 'from `npm start` to the first token, set-up done',
  help: '  --rounds N          starts that count (3); one more comes before them',
  options: { rounds: { type: 'string' } },
  async run(options, progress) {
    const rounds = Number(options.rounds ?? 3);
    const ready: number[] = [];
    const token: number[] = [];
    for (let round = 0; round <= rounds; round++) {
      const times = await startOnce();
      progress(
        `start ${round}: ready after ${Math.round(times.readyMs)} ms, first token after ${Math.round(times.tokenMs)} ms`,
      );
      if (round === 0) continue;
      ready.push(times.readyMs / 1000);
      token.push(times.tokenMs / 1000);
    }
    return {
      figures: [
        figure('startup_s', 'npm start to first token', 's', median(token), { atMost: 5 }),
        figure('startup_ready_s', 'npm start to the ready line', 's', median(ready)),
      ],
      details: { ready, token },
    };
  },
};

async function startOnce(): Promise<{ readyMs: number; tokenMs: number }> {
  const stateDir = mkdtempSync(join(tmpdir(), 'dynact-bench-'));
  const began = performance.now();
  const npm = start([
    'npm',
    '--prefix',
    packageRoot(),
    'start',
    '--',
    '--port',
    '0',
    '--state-dir',
    stateDir,
    '--log-level',
    'warn',
  ]);
  try {
    const [, port, model] = await says(npm, /^dynact ready http:\/\/[^:]+:(\d+) \(model ([^,]+),/m);
    const readyMs = performance.now() - began;
    const client = await openFirstTokenClient(Number(port));
    const asked = performance.now();
    const body = { model, messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 4, stream: true };
    const firstMs = await client.ask('/v1/chat/completions', JSON.stringify(body));
    client.close();
    return { readyMs, tokenMs: asked - began + firstMs };
  } finally {
    // A signal to npm ends npm and its shell; the node is asked in its own way.
    const cli = join(packageRoot(), 'dist/bin/dynact.js');
    await promisify(execFile)(process.execPath, [cli, 'stop', '--state-dir', stateDir], { timeout: 30_000 });
    await npm.stop();
    rmSync(stateDir, { recursive: true, force: true });
  }
}
