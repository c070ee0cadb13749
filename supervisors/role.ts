/** The child's side of `os-process.ts`: one role in one process, from the boot message to its last words. */
import type { ExitReason } from '../actors/index.js';
import { holdNatsServer } from '../transport/index.js';
import type { GatewayBoot, ListenHandle, RunningTree, WorkerBoot } from './boot.js';
import { describe } from './errors.js';
import { warmUpSooner } from './hot-code.js';
import { exitCodes, type FromChild, factsEveryMs, type Role, type ToChild } from './ipc.js';
import { within } from './within.js';

const bootWithinMs = 10_000;
/** What a drain may take beyond its deadline before the process ends itself. */
const graceMs = 1000;
/** Of a worker that gateways needed to the last. */
const leastDrainMs = 1000;

/** Serves `role` until it ends; then exits the process. */
export async function runRole(role: Role): Promise<void> {
  await serveRole(async (boot) => {
    if (boot.role === 'gateway') return (await import('./trees/gateway.js')).startGateway(boot);
    return (await import('./trees/worker.js')).startWorker(boot);
  }, role);
}

/** The same with any tree: specs put a bare one in a real process. */
export async function serveRole(
  start: (boot: WorkerBoot | GatewayBoot) => Promise<RunningTree>,
  role: Role,
): Promise<void> {
  if (process.send === undefined) {
    process.stderr.write('dynact role is started by dynact up, not by hand\n');
    process.exit(exitCodes.usage);
  }
  process.on('uncaughtException', (error) => lastWords('error', error.stack ?? error.message, exitCodes.bug));
  process.on('unhandledRejection', (error) => lastWords('error', describe(error), exitCodes.bug));
  // A terminal's Ctrl-C reaches the whole group; the parent decides what it means for its children.
  process.on('SIGINT', () => {});

  let tree: RunningTree | undefined;
  let drainMs = 5000;
  let draining = false;
  const drain = (deadlineMs: number) => {
    if (draining) return;
    draining = true;
    tell({ type: 'draining' });
    setTimeout(() => overdue(`did not drain within ${deadlineMs} ms`), deadlineMs + graceMs);
    if (tree === undefined) lastWords('shutdown', 'stopped before it was ready', exitCodes.ok);
    else tree.drain(deadlineMs).catch((error) => lastWords('error', describe(error), exitCodes.failed));
  };
  process.on('SIGTERM', () => drain(drainMs));
  // Without a parent all drain. Gateways begin, and what waits in them needs workers until they are gone.
  process.on('disconnect', () => {
    const begun = performance.now();
    const left = () => Math.max(leastDrainMs, drainMs - (performance.now() - begun));
    void within(tree?.unneeded?.() ?? Promise.resolve(), drainMs).then(() => drain(left()));
  });

  const boot = await booted(drain);
  if (boot.role !== role) lastWords('error', `started as ${role}, told to be ${boot.role}`, exitCodes.usage);
  drainMs = boot.config.node.drainMs;
  if (boot.nats.holders) holdBroker(boot.nats.holders);
  try {
    tree = await start(boot);
  } catch (error) {
    return lastWords('error', describe(error), exitCodes.failed);
  }
  const running = tree;
  process.on('message', (raw) => {
    const message = raw as ToChild;
    if (message.type === 'question') {
      const { id, question } = message;
      const gateway = boot.incarnation;
      const asked = running.answer?.(question) ?? Promise.reject(new Error('not a gateway'));
      asked.then(
        (answer) => tell({ type: 'answer', id, answer }),
        (error) => tell({ type: 'answer', id, answer: { gateway, error: describe(error) } }),
      );
    }
    if (message.type !== 'fault') return;
    try {
      running.faults?.inject(message.fault);
    } catch (error) {
      process.stderr.write(`${describe(error)}\n`);
    }
  });
  warmUpSooner();
  tell({ type: 'ready' });
  setInterval(() => {
    const { user, system } = process.cpuUsage();
    const cpuMs = (user + system) / 1000;
    tell({ type: 'facts', facts: running.facts(), rssBytes: process.memoryUsage.rss(), cpuMs });
  }, factsEveryMs);
  const reason = await running.exit;
  const failed = reason.kind === 'error' || reason.kind === 'killed';
  lastWords(
    reason.kind,
    reason.kind === 'error' ? describe(reason.error) : '',
    failed ? exitCodes.failed : exitCodes.ok,
  );
}

/** Until this process ends. */
function holdBroker(holders: string): void {
  try {
    holdNatsServer(holders);
  } catch {
    // The broker has just been replaced by its next life; the node still holds that one.
  }
}

function booted(drain: (deadlineMs: number) => void): Promise<WorkerBoot | GatewayBoot> {
  return new Promise((resolve) => {
    const late = setTimeout(() => lastWords('error', 'no boot message', exitCodes.failed), bootWithinMs);
    process.on('message', (raw, handle) => {
      const message = raw as ToChild;
      if (message.type === 'drain') return drain(message.deadlineMs);
      if (message.type !== 'boot') return;
      clearTimeout(late);
      const { boot } = message;
      resolve(boot.role === 'gateway' ? { ...boot, listener: handle as unknown as ListenHandle } : boot);
    });
  });
}

function tell(message: FromChild, sent: () => void = () => {}): void {
  // The parent may be gone, or going: nobody to tell is no reason to fail.
  if (process.connected) process.send?.(message, undefined, {}, sent);
  else sent();
}

let ending = false;
function lastWords(kind: ExitReason['kind'], message: string, code: number): void {
  if (ending) return;
  ending = true;
  // The parent gets the message; the log gets what only a developer can use, or what no parent is there to hear.
  if (code === exitCodes.bug || !process.connected) process.stderr.write(`${message}\n`);
  process.exitCode = code;
  setTimeout(() => process.exit(code), 200).unref();
  tell({ type: 'ended', kind, message: message.slice(0, 2000) }, () => process.exit(code));
}

/** What did not end when asked may hang in an orderly exit as well, e.g. in joining a wedged engine thread: no hooks any more. */
function overdue(message: string): void {
  const end = () => process.kill(process.pid, 'SIGKILL');
  setTimeout(end, 200);
  if (!process.connected) process.stderr.write(`${message}\n`);
  tell({ type: 'ended', kind: 'killed', message }, end);
}
