/**
 * A real role process with a bare tree, for specs of what is around trees. The model id says how it behaves:
 * `stub`, `refuse` (cannot start), `vanish` (exits 3 while starting), `stubborn` (never drains), `end` (ends by itself), `slow` (takes 2.5 s to
 * start), `stuck` (an engine with work queued that takes no step).
 */
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExitReason } from '../../actors/index.js';
import type { GatewayBoot, RunningTree, WorkerBoot } from '../../supervisors/boot.js';
import type { Role } from '../../supervisors/ipc.js';
import { serveRole } from '../../supervisors/role.js';

async function startStub(boot: WorkerBoot | GatewayBoot): Promise<RunningTree> {
  const behaviour = boot.model.id;
  if (behaviour === 'refuse') throw new Error('no such weights');
  if (behaviour === 'vanish') process.exit(3);
  if (behaviour === 'slow') await sleep(2500);
  let settle: (reason: ExitReason) => void = () => {};
  const exit = new Promise<ExitReason>((resolve) => {
    settle = resolve;
  });
  if (boot.role === 'gateway') {
    const http = createServer((_, response) => response.end(`${process.pid} ${boot.incarnation}`));
    await new Promise<void>((resolve) => http.listen(boot.listener, resolve));
  }
  if (behaviour === 'end') setImmediate(() => settle({ kind: 'normal' }));
  process.stderr.write(`hello from ${boot.instance}\n`);
  return {
    drain: async () => {
      if (behaviour !== 'stubborn') settle({ kind: 'shutdown' });
    },
    kill: () => settle({ kind: 'killed' }),
    exit,
    facts: () => (behaviour === 'stuck' ? { steps: 5, queued: 1 } : { steps: 5, queued: 0 }),
  };
}

await serveRole(startStub, process.argv[3] as Role);
