/** Errors of this folder. Matched by code, never by text. */
interface Kind {
  readonly message: string;
  /** The same call may succeed later without anybody changing anything. */
  readonly retryable: boolean;
  readonly meaning: string;
}

const supervisorErrors = {
  SUP_CONFIG_FILE: {
    message: 'configuration file {0}: {1}',
    retryable: false,
    meaning: 'missing, unreadable or not JSON/YAML',
  },
  SUP_CONFIG_KEY: { message: 'unknown setting {0} ({1}); did you mean {2}?', retryable: false, meaning: 'no such key' },
  SUP_CONFIG_VALUE: { message: '{0} = {1} ({2}): {3}', retryable: false, meaning: 'value outside its type or range' },
  SUP_CONFIG_LIVE: {
    message: '{0} cannot be changed while it runs; set it where the node is started. Did you mean {1}?',
    retryable: false,
    meaning: 'a setting that is read at the start',
  },
  SUP_CONFIG_PAIR: { message: '{0}', retryable: false, meaning: 'two settings contradict each other' },
  SUP_PORT_IN_USE: {
    message:
      'port {0} on {1} is in use by another program; choose one with --port or DYNACT_HTTP_PORT (0 = any free port)',
    retryable: true,
    meaning: 'EADDRINUSE on the HTTP port',
  },
  SUP_LISTEN: {
    message: 'cannot listen on {0}:{1}: {2}',
    retryable: false,
    meaning: 'the HTTP address cannot be bound',
  },
  SUP_NODE_RUNNING: {
    message:
      'a node (pid {0}) is already running in {1}; stop it with `dynact stop`, or choose another folder with --state-dir',
    retryable: true,
    meaning: 'the state folder’s lock is held by a living node',
  },
  SUP_NO_NODE: {
    message: 'no node is running in {0}; start one with `npm start`, or name its folder with --state-dir',
    retryable: true,
    meaning: 'nobody answers on the control socket',
  },
  SUP_STATE_DIR: {
    message: 'state folder {0}: {1}',
    retryable: false,
    meaning: 'cannot be created, or is open to other users',
  },
  SUP_LEFTOVER: {
    message: 'process {0} of an earlier run in {1} does not end; end it by hand',
    retryable: true,
    meaning: 'a child of a killed node survived SIGKILL',
  },
  SUP_START_TIMEOUT: {
    message: '{0} was not ready after {1} ms',
    retryable: true,
    meaning: 'a child did not report ready in time',
  },
  SUP_START_FAILED: {
    message: '{0} could not start: {1}',
    retryable: true,
    meaning: 'a child ended, or reported an error, before it was ready',
  },
  SUP_START_KILLED: {
    message: '{0} was ended from outside before it was ready: {1}',
    retryable: true,
    meaning: 'a child got a signal while it started, e.g. for want of memory; whether it can start is not known',
  },
  SUP_CALLED_OFF: {
    message: 'the node was told to end before it was up',
    retryable: true,
    meaning: 'a stop came while the node started',
  },
  SUP_CHILD_EXIT: {
    message: '{0} ended: {1}',
    retryable: true,
    meaning: 'a child process ended without having been asked to',
  },
  SUP_NODE_GAVE_UP: {
    message: 'the node gave up: {0}',
    retryable: false,
    meaning: 'more restarts than restart.intensity allows within restart.periodMs',
  },
  SUP_MODEL: {
    message: 'model {0}: {1}',
    retryable: false,
    meaning: 'neither a known model id nor a readable file',
  },
  SUP_FAULT: {
    message: 'no fault was injected into {0}: {1}',
    retryable: false,
    meaning: 'the node was started without faults.enabled, or has no such process',
  },
  SUP_RESTART: {
    message: 'the restart stopped at {0}: {1}',
    retryable: true,
    meaning: 'a process cannot be replaced, or did not come back; those after it were left alone',
  },
  SUP_RESTART_FAILED: {
    message: '{0}',
    retryable: true,
    meaning: 'what a running node answered to a restart: a SUP_RESTART of its own',
  },
  SUP_TRACE: {
    message: 'no record of {0}: {1}. The id is that of an answer (chatcmpl-…), or its x-request-id header',
    retryable: true,
    meaning: 'no stream, or no file, has anything of the request',
  },
  SUP_TAPE_FILE: {
    message: '{0}: {1}',
    retryable: false,
    meaning: 'a file of records that is damaged, cut short, of another format or of a newer version',
  },
  SUP_TAPE_IMPORT: {
    message: 'record {0} of {1} was not imported: {2}; {3}',
    retryable: true,
    meaning: 'the broker did not store a record',
  },
  SUP_REPLAY: {
    message: '{0}: {1}',
    retryable: false,
    meaning: 'what is to be run again is not on the tape, or a record of it is not as its process wrote it',
  },
  SUP_TOOLCHAIN: {
    message: '{0}: run `npm run setup`',
    retryable: false,
    meaning: 'set-up has not run, or what it put into the cache folder is gone',
  },
} as const satisfies Record<string, Kind>;

export type SupervisorErrorCode = keyof typeof supervisorErrors;

export class SupervisorError extends Error {
  override readonly name = 'SupervisorError';
  readonly code: SupervisorErrorCode;
  readonly retryable: boolean;

  constructor(code: SupervisorErrorCode, values: readonly unknown[], cause?: unknown) {
    const kind: Kind = supervisorErrors[code];
    super(
      kind.message.replace(/\{(\d)\}/g, (_, index: string) => String(values[Number(index)])),
      cause === undefined ? undefined : { cause },
    );
    this.code = code;
    this.retryable = kind.retryable;
  }
}

export function isSupervisorError(error: unknown, code?: SupervisorErrorCode): error is SupervisorError {
  return error instanceof SupervisorError && (code === undefined || error.code === code);
}

/** One line for people: the message, and what caused it. */
export function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : '';
  return `${error.message}${cause}`;
}
