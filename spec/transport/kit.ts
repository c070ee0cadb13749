/** A real nats-server for specs: start, kill, freeze, thaw, restart, and one connection per role. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import path from 'node:path';
import {
  type Address,
  address,
  connectNats,
  ensureStreams,
  type Head,
  type NatsBus,
  type NatsOptions,
  type NatsServer,
  type NatsServerOptions,
  type Role,
  type StreamSettings,
  startNatsServer,
} from '../../transport/index.js';

/** By DYNACT_NATS_SERVER, the manifest that set-up writes, or PATH. */
export function natsBinary(): string {
  const named = process.env.DYNACT_NATS_SERVER;
  if (named) return named;
  const cache =
    process.env.DYNACT_CACHE ?? path.join(process.env.XDG_CACHE_HOME ?? path.join(homedir(), '.cache'), 'dynact');
  try {
    const manifest = JSON.parse(readFileSync(path.join(cache, 'manifest.json'), 'utf8'));
    const found = typeof manifest.natsServer === 'string' ? manifest.natsServer : manifest.natsServer?.path;
    if (typeof found === 'string' && existsSync(found)) return found;
  } catch {
    // Set-up has not run; PATH is left.
  }
  for (const dir of (process.env.PATH ?? '').split(':')) {
    if (existsSync(path.join(dir, 'nats-server'))) return path.join(dir, 'nats-server');
  }
  throw new Error('no nats-server: run `npm run setup`, or set DYNACT_NATS_SERVER');
}

export interface Broker {
  readonly server: NatsServer;
  readonly dir: string;
  connect(role?: Role, options?: Partial<NatsOptions>): Promise<NatsBus>;
  kill(): Promise<void>;
  freeze(): void;
  thaw(): void;
  /** Kills what still runs, and starts again in the same folder with the same port and passwords. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export async function startBroker(
  options: Partial<NatsServerOptions> & { settings?: Partial<StreamSettings>; streams?: boolean } = {},
): Promise<Broker> {
  const { settings, streams, ...server } = options;
  const dir = server.stateDir ?? mkdtempSync(path.join(tmpdir(), 'dynact-nats-'));
  const complete = { binary: natsBinary(), namespace: 'spec', ...server, stateDir: dir };
  let running = await startNatsServer(complete);
  const buses: NatsBus[] = [];
  const broker: Broker = {
    get server() {
      return running;
    },
    dir,
    async connect(role = 'node', extra = {}) {
      const { url, namespace, user, password } = running.credentials(role);
      const bus = await connectNats({ url, namespace, user, password, silentMs: 500, ...extra });
      buses.push(bus);
      return bus;
    },
    async kill() {
      process.kill(running.pid, 'SIGKILL');
      await running.exited;
    },
    freeze: () => void process.kill(running.pid, 'SIGSTOP'),
    thaw: () => void process.kill(running.pid, 'SIGCONT'),
    async restart() {
      await running.stop(0);
      running = await startNatsServer(complete);
    },
    async stop() {
      await Promise.all(buses.map((bus) => bus.close()));
      await running.stop(2_000);
      rmSync(dir, { recursive: true, force: true });
    },
  };
  if (streams !== false) {
    const node = await broker.connect('node');
    await ensureStreams(node, { tape: 'full', sizeFactor: 0.1, ...settings });
  }
  return broker;
}

let count = 0;
/** A fresh incarnation's address: specs never share a mailbox. */
export function fresh(component: 'gateway' | 'prefill' | 'decode' = 'decode', actor = 'worker'): Address {
  count += 1;
  return address(component, `${component}-${process.pid}-${count}`, actor);
}

export function head(over: Partial<Head> = {}): Head {
  return { req: 'r1', attempt: 1, budgetMs: 10_000, ...over };
}

/** Resolves once `done` holds; `change` calls are what can make it so. A gate, so that no spec sleeps. */
export class Gate {
  private waiting: { done: () => boolean; open: () => void }[] = [];

  change(): void {
    const open = this.waiting.filter((w) => w.done());
    this.waiting = this.waiting.filter((w) => !open.includes(w));
    for (const w of open) w.open();
  }

  until(done: () => boolean, ms = 15_000, what = 'the expected state'): Promise<void> {
    if (done()) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${what} did not come within ${ms} ms`)), ms);
      this.waiting.push({
        done,
        open: () => {
          clearTimeout(timer);
          resolve();
        },
      });
    });
  }
}

export function stateOf(bus: NatsBus, wanted: 'up' | 'down'): Promise<void> {
  const gate = new Gate();
  const stop = bus.onState(() => gate.change());
  return gate.until(() => bus.state === wanted, 15_000, `bus ${wanted}`).finally(stop);
}

/** What a rejected promise says; fails if it resolves. */
export async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
  return 'resolved';
}

/** Lets real time pass, where the property is about time itself; never to wait for something to happen. */
export function elapse(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
