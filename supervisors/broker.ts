/**
 * The node's broker: its own nats-server as a supervised child, or somebody else's. The node's connection lives here, with
 * the streams that everybody needs and the obituaries that only a node supervisor can write.
 */
import { statfs } from 'node:fs/promises';
import { constants } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExitReason, Log } from '../actors/index.js';
import {
  address,
  connectNats,
  countDead,
  createPost,
  ensureStreams,
  isNetError,
  type NatsBus,
  type NatsServer,
  type PostOffice,
  purgeMail,
  type StreamSettings,
  startNatsServer,
  subjects,
} from '../transport/index.js';
import type { NatsLogin } from './boot.js';
import type { ResolvedConfig } from './config-schema.js';
import { SupervisorError } from './errors.js';
import { mintIncarnation } from './incarnation.js';
import type { Role } from './ipc.js';
import { watchNats } from './nats-probe.js';
import type { Child, Running } from './otp/index.js';
import { watchStores } from './store-watch.js';

export interface Broker {
  /** The server as a child; undefined when it is somebody else's. */
  readonly child: Child | undefined;
  login(role: Role): NatsLogin;
  url(): string;
  pid(): number | undefined;
  /** How the last server ended, for people. */
  lastExit(): string;
  /** Tells everybody that this incarnation will never speak again. Kept while the broker is away. */
  announceDown(role: Role, incarnation: string, reason: string): void;
  /** How many letters DEAD holds; null when the broker does not say, or not at once. */
  deadLetters(): Promise<number | null>;
  close(): Promise<void>;
}

const signalName = (number: number): string | number =>
  Object.entries(constants.signals).find(([, value]) => value === number)?.[0] ?? number;

/** What waits to be said while the broker is away; heartbeats tell the same later, so the oldest may go. */
const maxObituaries = 256;
const restoreEveryMs = 1_000;
/** A broker that has not stored a few bytes by then stores nothing. */
const storeMs = 2_000;
/** Larger than a page of a file: a full disk still takes what fits into one that is there. */
const probe = new Uint8Array(8_192);
/** A status that waits for a frozen broker would be of no use when it is needed most. */
const countMs = 300;

/** The node's connection: at most one at a time. */
function connection(config: ResolvedConfig, incarnation: string, log: Log) {
  const self = address('node', incarnation, 'supervisor');
  let bus: NatsBus | undefined;
  let post: PostOffice | undefined;
  let waiting: { role: Role; incarnation: string; reason: string }[] = [];
  const keepsMail = config.tape.level !== 'off';
  let restoring: NatsBus | undefined;

  const flush = () => {
    if (!post || bus?.state !== 'up') return;
    for (const { role, incarnation: dead, reason } of waiting) {
      const head = { req: '', attempt: 0, budgetMs: 0 };
      post.frame(
        self,
        address(role, dead, 'process'),
        'Down',
        { incarnation: dead, reason: reason.slice(0, 500) },
        head,
      );
      // Nobody will ever read it, but people who ask what happened: until then its age bounds it, as that of all mail.
      if (keepsMail) continue;
      purgeMail(bus, role, dead).catch((error) =>
        log.warn('mail not purged', { incarnation: dead, error: String(error) }),
      );
    }
    waiting = [];
  };
  const close = async () => {
    const [oldPost, oldBus] = [post, bus];
    // From here on obituaries wait for the next connection.
    post = bus = undefined;
    oldPost?.close();
    await oldBus?.close();
  };
  /** A broker that was started anew has lost the streams it kept in memory. */
  const restore = async (current: NatsBus, settings: StreamSettings, adopt: boolean) => {
    if (restoring === current) return;
    restoring = current;
    let told = false;
    while (current === bus && current.state !== 'closed') {
      try {
        if (current.state === 'up') {
          await ensureStreams(current, settings, { adopt });
          break;
        }
      } catch (error) {
        if (!told) log.error('streams could not be made again', { error: String(error) });
        told = true;
      }
      await sleep(restoreEveryMs);
    }
    if (restoring === current) restoring = undefined;
  };
  return {
    /** `signal`: the wait for the broker is over, for it is gone or nobody wants it any more. */
    async open(login: NatsLogin, adopt: boolean, signal?: AbortSignal): Promise<void> {
      await close();
      bus = await connectNats({
        url: login.url,
        namespace: config.node.namespace,
        name: incarnation,
        connectTimeoutMs: config.node.startMs,
        patient: true,
        ...(signal === undefined ? {} : { signal }),
        ...(login.user === '' ? {} : { user: login.user, password: login.pass }),
        onProblem: (problem, error) => log.warn(problem, { error: String(error) }),
      });
      const settings: StreamSettings = {
        tape: config.tape.level,
        replicas: config.nats.replicas,
        sizeFactor: config.nats.sizeFactor,
        leaseMs: config.nats.leaseMs,
      };
      await ensureStreams(bus, settings, { adopt });
      const current = bus;
      current.onState((state) => {
        if (state !== 'up') return;
        flush();
        void restore(current, settings, adopt);
      });
      post = createPost(bus);
      flush();
    },
    announceDown(role: Role, dead: string, reason: string) {
      waiting.push({ role, incarnation: dead, reason });
      if (waiting.length > maxObituaries) waiting.shift();
      flush();
    },
    up: () => bus?.state === 'up',
    /**
     * A record onto each file that serving depends on: on a full disk each stops by itself to take any, for good. KV events and the registry
     * are there whatever the tape is. Nobody reads what a node writes there.
     */
    async store(): Promise<void> {
      const current = bus;
      if (current === undefined) return;
      const s = subjects(config.node.namespace);
      const mark = () => mintIncarnation('store');
      await Promise.all([
        current.store(s.kv(incarnation, 0), probe, mark(), storeMs, { rollup: true }),
        current.put(`probe.${incarnation}`, probe),
        ...(config.tape.level === 'full' ? [current.store(s.mail(self), probe, mark(), storeMs)] : []),
      ]);
    },
    async deadLetters(): Promise<number | null> {
      if (bus?.state !== 'up') return null;
      return Promise.race([countDead(bus).catch(() => null), sleep(countMs, null, { ref: false })]);
    },
    close,
  };
}

/**
 * Connects to a broker that others run, and waits for it for as long as a process may take to start. Rejects with the transport's
 * errors, which name the setting.
 */
export async function externalBroker(config: ResolvedConfig, incarnation: string, log: Log): Promise<Broker> {
  const { url, user, password } = config.nats;
  const login = { url, user, pass: password };
  const wire = connection(config, incarnation, log);
  await wire.open(login, false);
  const { announceDown, deadLetters, close } = wire;
  const server = { child: undefined, login: () => login, url: () => url, pid: () => undefined, lastExit: () => '' };
  return { ...server, announceDown, deadLetters, close };
}

/** A nats-server of the node's own, on the same port and store in every life. */
export function embeddedBroker(config: ResolvedConfig, binary: string, incarnation: string, log: Log): Broker {
  const wire = connection(config, incarnation, log);
  let server: NatsServer | undefined;
  let alive = false;
  let lastExit = '';
  const loginOf = (role: Role | 'node'): NatsLogin => {
    if (!server) throw new SupervisorError('SUP_START_FAILED', ['nats', 'it has not been started']);
    const { url, user, password } = server.credentials(role);
    return { url, user, pass: password, holders: server.holders };
  };

  async function start(abort: AbortSignal): Promise<Running> {
    const port = server?.port;
    const life = await startNatsServer({
      binary,
      stateDir: join(config.node.stateDir, 'nats'),
      namespace: config.node.namespace,
      orphanDeadlineMs: config.node.drainMs + 5000,
      ...(port === undefined ? {} : { port }),
    }).catch((error) => {
      if (isNetError(error, 'NET_SERVER_KILLED'))
        throw new SupervisorError('SUP_START_KILLED', ['nats', error.message], error);
      // The executable is what set-up left: only set-up can replace it.
      const unfit = isNetError(error, 'NET_VERSION_TOO_OLD') || isNetError(error, 'NET_NO_BINARY');
      throw unfit ? new SupervisorError('SUP_TOOLCHAIN', [error.message]) : error;
    });
    server = life;
    alive = true;
    const name = mintIncarnation('nats');
    let asked: 'no' | 'stop' | 'kill' = 'no';
    /** It is killed for a reason of ours. */
    let why = '';
    const kill = () => {
      try {
        if (alive) process.kill(life.pid, 'SIGKILL');
      } catch {
        // It is gone, and its keeper is about to say so.
      }
    };
    const unwatch = watchNats('127.0.0.1', life.port, config.nats.silentMs, () => {
      why = `silent for ${config.nats.silentMs} ms`;
      log.warn('nats-server is silent; it is killed', { pid: life.pid });
      kill();
    });
    const disk = join(config.node.stateDir, 'nats');
    const unwatchStores = watchStores(
      { store: wire.store, up: wire.up, freeBytes: async () => ((fs) => fs.bavail * fs.bsize)(await statfs(disk)) },
      (free) =>
        log.error('nats-server stores nothing: the disk is full', { disk, freeMiB: Math.floor(free / 2 ** 20) }),
      () => {
        why = 'it stored nothing';
        log.warn('nats-server stores nothing, and there is space; it is killed', { pid: life.pid });
        kill();
      },
    );
    const exit = life.exited.then(async ({ code, signal }): Promise<ExitReason> => {
      alive = false;
      unwatch();
      unwatchStores();
      // The keeper's exit code is the server's, as a shell says it: 128 and the signal.
      const how = signal
        ? `signal ${signal}`
        : code !== null && code > 128
          ? `signal ${signalName(code - 128)}`
          : `exit code ${code}`;
      lastExit = why === '' ? how : `${how}: ${why}`;
      await life.stop(0);
      if (asked === 'stop') return { kind: 'shutdown' };
      if (asked === 'kill' || signal || (code ?? 0) > 128) return { kind: 'killed' };
      return { kind: 'error', error: new SupervisorError('SUP_CHILD_EXIT', ['nats', how]) };
    });
    const gone = new AbortController();
    void exit.then(() => gone.abort());
    try {
      await wire.open(loginOf('node'), true, AbortSignal.any([abort, gone.signal]));
      if (abort.aborted) throw new SupervisorError('SUP_START_FAILED', ['nats', 'it is no longer wanted']);
    } catch (error) {
      // Read before this process ends it: a server that died while it was waited for has a reason of its own.
      const died = gone.signal.aborted;
      asked = 'stop';
      await life.stop();
      await exit;
      if (!died) throw error;
      const fault = lastExit.startsWith('signal') ? 'SUP_START_KILLED' : 'SUP_START_FAILED';
      throw new SupervisorError(fault, ['nats', lastExit], error);
    }
    return {
      incarnation: name,
      exit,
      stop: async (deadlineMs) => {
        asked = asked === 'no' ? 'stop' : asked;
        await wire.close();
        await life.stop(Math.min(deadlineMs, 60_000));
        return exit;
      },
      kill: () => {
        asked = 'kill';
        kill();
      },
    };
  }
  return {
    child: { start },
    login: loginOf,
    url: () => server?.url ?? '',
    pid: () => (alive ? server?.pid : undefined),
    lastExit: () => lastExit,
    announceDown: wire.announceDown,
    deadLetters: wire.deadLetters,
    close: wire.close,
  };
}
