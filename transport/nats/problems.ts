import { JetStreamApiError } from '@nats-io/jetstream';
import {
  AuthorizationError,
  ClosedConnectionError,
  InvalidArgumentError,
  type NatsConnection,
  NoRespondersError,
  PermissionViolationError,
  RequestError,
  TimeoutError,
  UserAuthenticationExpiredError,
} from '@nats-io/transport-node';
import { NetError } from '../errors.js';

export const oldestServer = '2.11.0';

export function isAuthError(error: unknown): boolean {
  return chain(error).some((e) => e instanceof AuthorizationError || e instanceof UserAuthenticationExpiredError);
}

/** Is version `a` older than `b`? Compares major.minor.patch. */
export function olderThan(a: string, b: string): boolean {
  const numbers = (v: string) => (v.match(/\d+/g) ?? []).slice(0, 3).map(Number);
  const [x, y] = [numbers(a), numbers(b)];
  for (let i = 0; i < 3; i++) if ((x[i] ?? 0) !== (y[i] ?? 0)) return (x[i] ?? 0) < (y[i] ?? 0);
  return false;
}

export function checkServer(connection: NatsConnection, url: string): void {
  const found = connection.info?.version ?? '0.0.0';
  if (olderThan(found, oldestServer)) throw new NetError('NET_VERSION_TOO_OLD', { found, wanted: oldestServer });
  if (connection.info?.jetstream !== true) throw new NetError('NET_NO_JETSTREAM', { url });
}

/** JetStream's error numbers for "no room": messages, bytes, per subject, storage, memory, resources, too many in flight. */
const full: ReadonlySet<number> = new Set([10023, 10028, 10047, 10054, 10077, 10122, 10123, 10167]);
const noStream = 10059;
const wrongLast = 10071;
const noConsumer = 10014;
const noAccount: ReadonlySet<number> = new Set([10039, 10076, 10035]);

/** What a question to JetStream brings when there is a server but no JetStream. */
export const withoutJetStream: ReadonlySet<string> = new Set(['NET_NO_RESPONDER', 'NET_NO_JETSTREAM']);

/** How long a connection, or a question to JetStream's API, may wait for its answer. */
export const apiMs = 2_000;

/** Translates what the client library throws. `ms`: how long the answer was waited for. */
export function netError(error: unknown, what: string, ms = apiMs): NetError {
  if (error instanceof NetError) return error;
  for (const e of chain(error)) {
    if (e instanceof PermissionViolationError)
      return new NetError('NET_DENIED', { what: `${e.operation} ${e.subject}` }, error);
    if (e instanceof AuthorizationError) return new NetError('NET_UNAUTHORIZED', { what }, error);
    if (e instanceof TimeoutError) return new NetError('NET_TIMEOUT', { ms, what }, error);
    if (e instanceof ClosedConnectionError) return new NetError('NET_DOWN', { what }, error);
    if (e instanceof Error && e.name === 'JetStreamNotEnabled') return new NetError('NET_NO_STREAM', { what }, error);
    if (e instanceof JetStreamApiError) return apiError(e, what);
    if (e instanceof NoRespondersError) return new NetError('NET_NO_RESPONDER', { what }, error);
    if (e instanceof RequestError && e.isNoResponders()) return new NetError('NET_NO_RESPONDER', { what }, error);
    if (e instanceof InvalidArgumentError && e.message.includes('max_payload')) {
      return new NetError('NET_TOO_LARGE', { bytes: '?', limit: 'max_payload', what }, error);
    }
  }
  return new NetError(
    'NET_REFUSED',
    { what: `${what}: ${error instanceof Error ? error.message : String(error)}` },
    error,
  );
}

function apiError(error: JetStreamApiError, what: string): NetError {
  if (full.has(error.code)) return new NetError('NET_STREAM_FULL', { what: `${what}: ${error.message}` }, error);
  if (error.code === wrongLast) return new NetError('NET_CONFLICT', { what }, error);
  if (error.code === noStream) return new NetError('NET_NO_STREAM', { what }, error);
  if (error.code === noConsumer) return new NetError('NET_NO_TAKER', { what }, error);
  if (noAccount.has(error.code)) return new NetError('NET_NO_JETSTREAM', { url: what }, error);
  return new NetError('NET_REFUSED', { what: `${what}: ${error.message} (${error.code})` }, error);
}

function chain(error: unknown): unknown[] {
  const found: unknown[] = [];
  for (let e = error; e !== undefined && e !== null && found.length < 5; e = (e as { cause?: unknown }).cause)
    found.push(e);
  return found;
}
