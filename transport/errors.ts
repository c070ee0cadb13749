/**
 * Every way the transport can fail. Callers match `code`, never text. `retryable`: the same call may succeed later
 * without anybody changing anything.
 */
const table = {
  NET_TIMEOUT: {
    retryable: true,
    message: 'no answer within {ms} ms: {what}',
    meaning: 'The deadline passed; the message may or may not have been stored.',
  },
  NET_NO_RESPONDER: {
    retryable: true,
    message: 'nobody listens on {what}',
    meaning: 'A query reached the broker, and no process serves its subject.',
  },
  NET_NO_STREAM: {
    retryable: true,
    message: 'no stream stores {what}',
    meaning: 'The stream is missing: not created yet, or lost with a memory-only broker.',
  },
  NET_DOWN: {
    retryable: true,
    message: 'the broker is away: {what}',
    meaning: 'The connection is down; it is being re-established.',
  },
  NET_CLOSED: {
    retryable: false,
    message: 'the bus is closed',
    meaning: 'close() was called, the first connection was called off, or the credentials were refused for good.',
  },
  NET_OUTBOX_FULL: {
    retryable: true,
    message: 'outbox is full: {count} messages, {bytes} bytes wait',
    meaning: 'Commands are produced faster than the broker takes them.',
  },
  NET_REFUSED: {
    retryable: false,
    message: 'refused: {what}',
    meaning: 'The broker or the receiver will not take this message; `cause` says why.',
  },
  NET_STREAM_FULL: {
    retryable: true,
    message: 'stream is full: {what}',
    meaning: 'A limit on bytes or messages is reached, or the disk is full; new messages are refused.',
  },
  NET_NO_TAKER: {
    retryable: false,
    message: 'nobody takes jobs of {what}',
    meaning: 'No prefill worker of this kind has asked the work queue lately: whoever has a job does it himself.',
  },
  NET_CONFLICT: {
    retryable: false,
    message: 'somebody else has written {what} meanwhile',
    meaning: 'A message that had to follow a certain other one on its subject came too late.',
  },
  NET_DENIED: {
    retryable: false,
    message: 'permission denied: {what}',
    meaning: 'The role of this connection may not use this subject.',
  },
  NET_TOO_LARGE: {
    retryable: false,
    message: '{bytes} bytes exceed the limit of {limit}: {what}',
    meaning: 'The message is larger than its carrier allows, chunks included.',
  },
  NET_EXPIRED: {
    retryable: false,
    message: 'expired: {what}',
    meaning: 'The time budget of the message was used up before it was handled.',
  },
  NET_MALFORMED: {
    retryable: false,
    message: 'malformed message: {what}',
    meaning: 'Not CBOR, not an envelope, or a field violates its schema.',
  },
  NET_UNKNOWN_TYPE: { retryable: false, message: 'unknown message type {what}', meaning: 'A newer or foreign sender.' },
  NET_VERSION: {
    retryable: false,
    message: 'envelope version {found}, this process speaks {wanted}',
    meaning: 'Sender and receiver differ in protocol version.',
  },
  NET_INCOMPLETE: {
    retryable: false,
    message: 'incomplete chunked message: {what}',
    meaning: 'Chunks are missing, damaged, too many or too old.',
  },
  NET_HANDLER: {
    retryable: false,
    message: 'handler failed: {what}',
    meaning: 'The receiver threw; the message is in DEAD.',
  },
  NET_UNAUTHORIZED: {
    retryable: false,
    message: 'the broker refused the credentials of {what}',
    meaning: 'User or password are wrong.',
  },
  NET_NO_JETSTREAM: {
    retryable: false,
    message: 'the broker at {url} has no JetStream: start nats-server with -js, or `jetstream {}` in its configuration',
    meaning: 'JetStream is off for the server or the account.',
  },
  NET_NO_ROOM: {
    retryable: false,
    message:
      'the broker has no room for {stream}, which reserves {bytes} bytes of {storage}: raise its limit (max_file_store, max_memory_store) or lower nats.sizeFactor ({why})',
    meaning: 'JetStream reserves the size of every stream when it is created.',
  },
  NET_VERSION_TOO_OLD: {
    retryable: false,
    message: 'nats-server {found} is too old: {wanted} or newer is needed',
    meaning: 'Older servers ignore lease markers silently.',
  },
  NET_CONFIG: {
    retryable: false,
    message: '{stream}: setting {setting} is {found}, wanted {wanted}',
    meaning: 'The broker did not take, or somebody changed, a setting of a stream or bucket.',
  },
  NET_NO_BINARY: {
    retryable: false,
    message: 'cannot run nats-server at {path}: {why}',
    meaning: 'The executable is missing or cannot be executed.',
  },
  NET_PORT_IN_USE: {
    retryable: false,
    message: 'port {port} on {host} is in use',
    meaning: 'Another program listens there.',
  },
  NET_STATE_IN_USE: {
    retryable: false,
    message: 'process {pid} already runs a broker in {dir}',
    meaning: 'Two nodes were started in one folder.',
  },
  NET_SERVER_EXIT: {
    retryable: true,
    message: 'nats-server ended before it was ready ({exit}): {log}',
    meaning: 'See the end of its log.',
  },
  NET_SERVER_KILLED: {
    retryable: true,
    message: 'nats-server got signal {signal} before it was ready',
    meaning: 'Somebody ended it from outside, e.g. for want of memory; whether it can start is not known.',
  },
} as const;

export type NetCode = keyof typeof table;
export const netErrors: Readonly<Record<NetCode, { retryable: boolean; message: string; meaning: string }>> = table;

export class NetError extends Error {
  readonly code: NetCode;
  readonly retryable: boolean;

  constructor(code: NetCode, fields: Record<string, string | number> = {}, cause?: unknown) {
    const text = table[code].message.replace(/\{(\w+)\}/g, (_, name: string) => String(fields[name] ?? '?'));
    super(text, cause === undefined ? undefined : { cause });
    this.name = 'NetError';
    this.code = code;
    this.retryable = table[code].retryable;
  }
}

export function isNetError(error: unknown, code?: NetCode): error is NetError {
  return error instanceof NetError && (code === undefined || error.code === code);
}
