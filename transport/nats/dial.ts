/** The first connection: the broker may start later than we do, and JetStream later than the broker. */
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { realClock } from '../clock.js';
import { isNetError, NetError } from '../errors.js';
import { apiMs, checkServer, isAuthError, netError, withoutJetStream } from './problems.js';

export interface DialOptions {
  readonly url: string;
  /** Replies come to `_INBOX_<user>.`, which only this user may read. */
  readonly user?: string;
  readonly password?: string;
  /** Shown in the broker's list of connections. */
  readonly name?: string;
  /** How long the first connection may take. Default 10,000. */
  readonly connectTimeoutMs?: number;
  /** Waits for JetStream too, and tells `onProblem` once what it waits for. Otherwise a server without it is an error at once. */
  readonly patient?: boolean;
  /** Gives up the wait for the first connection: whoever would answer is known to be gone. */
  readonly signal?: AbortSignal;
  /** Told of what nobody waits for: a handler that threw, a denied subscription. Must not throw. */
  readonly onProblem?: (problem: string, error: unknown) => void;
}

export interface Dialled {
  readonly connection: NatsConnection;
  readonly manager: JetStreamManager;
}

export const reconnectWaitMs = 100;
/** Nothing but an operator can change these. */
const final: ReadonlySet<string> = new Set(['NET_UNAUTHORIZED', 'NET_VERSION_TOO_OLD', 'NET_DENIED']);

/**
 * Rejects with NET_UNAUTHORIZED or NET_VERSION_TOO_OLD at once, with NET_NO_JETSTREAM or NET_TIMEOUT at the deadline, with NET_CLOSED
 * when it is called off.
 */
export async function dial(options: DialOptions): Promise<Dialled> {
  const patience = options.connectTimeoutMs ?? 10_000;
  const deadline = realClock.now() + patience;
  const told = new Set<string>();
  const calledOff = () => options.signal?.aborted === true;
  for (;;) {
    if (calledOff()) throw new NetError('NET_CLOSED', { what: options.url });
    try {
      const dialled = await once(options);
      if (!calledOff()) return dialled;
      await dialled.connection.close();
    } catch (error) {
      if (calledOff()) continue;
      const problem = netError(error, options.url);
      const away = problem.code !== 'NET_NO_JETSTREAM';
      if (final.has(problem.code) || !(away || options.patient)) throw problem;
      if (realClock.now() + reconnectWaitMs > deadline) {
        if (!away) throw problem;
        throw new NetError('NET_TIMEOUT', { ms: patience, what: `connecting to ${options.url}` }, error);
      }
      if (options.patient && !told.has(problem.code)) options.onProblem?.('waiting for the broker', problem);
      told.add(problem.code);
      await new Promise((resolve) => setTimeout(resolve, reconnectWaitMs));
    }
  }
}

async function once(options: DialOptions): Promise<Dialled> {
  const connection = await open(options);
  try {
    checkServer(connection, options.url);
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: apiMs });
    await manager.getAccountInfo();
    return { connection, manager };
  } catch (error) {
    await connection.close();
    const problem = netError(error, options.url);
    // Nobody answers questions to JetStream: the client calls that a missing stream.
    if (withoutJetStream.has(problem.code) || isNetError(problem, 'NET_NO_STREAM'))
      throw new NetError('NET_NO_JETSTREAM', { url: options.url }, error);
    throw problem;
  }
}

/** The library's own waiting for a server would also wait on refused credentials. */
async function open(options: DialOptions): Promise<NatsConnection> {
  try {
    return await connect({
      servers: options.url,
      name: options.name ?? 'dynact',
      ...(options.user !== undefined && { user: options.user, inboxPrefix: inboxPrefix(options.user) }),
      ...(options.password !== undefined && { pass: options.password }),
      maxReconnectAttempts: -1,
      reconnectTimeWait: reconnectWaitMs,
      reconnectJitter: 50,
      timeout: apiMs,
      pingInterval: 10_000,
      maxPingOut: 2,
      ignoreAuthErrorAbort: false,
      noEcho: false,
      // Else every request makes two errors with stack traces, just in case.
      noAsyncTraces: true,
    });
  } catch (error) {
    if (isAuthError(error)) throw new NetError('NET_UNAUTHORIZED', { what: options.user ?? 'nobody' }, error);
    throw new NetError('NET_DOWN', { what: options.url }, error);
  }
}

export function inboxPrefix(user: string): string {
  return `_INBOX_${user.replace(/[^A-Za-z0-9_-]/g, '_')}`;
}
