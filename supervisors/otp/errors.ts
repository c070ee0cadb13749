/** What supervision can complain about. Matched by code, never by text. */

interface ErrorRow {
  readonly template: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly meaning: string;
}

const supervisionErrors = {
  SUP_SPEC: {
    template: 'supervisor %s: %s',
    retryable: false,
    meaning: 'an option or child specification that makes no sense; the text names the keys',
  },
  SUP_CHILD_START: {
    template: 'supervisor %s: child %s could not start',
    retryable: true,
    meaning: 'a first start failed; the children started before it are stopped again',
  },
  SUP_CHILD_SLOW: {
    template: '%s did not start within %s ms',
    retryable: true,
    meaning: 'startDeadlineMs of a child passed',
  },
  SUP_CHILD_HUNG: {
    template: '%s neither ended nor gave up within %s ms of being told to',
    retryable: false,
    meaning: 'a child ignores kill or abort; a second life beside it is not started, the supervisor gives up',
  },
  SUP_INTENSITY: {
    template: 'supervisor %s: more than %s restarts within %s ms, the last one of %s',
    retryable: false,
    meaning: 'restarting does not help; the supervisor stops its children and leaves it to its own supervisor',
  },
  SUP_ABORTED: {
    template: 'supervisor %s is not wanted any more',
    retryable: false,
    meaning: 'start was aborted, or a child was to be started in a supervisor that is stopping',
  },
  SUP_RUNNING: {
    template: 'supervisor %s runs already',
    retryable: false,
    meaning: 'a second start while the first life goes on',
  },
  SUP_NO_CHILD: {
    template: 'supervisor %s has no child %s',
    retryable: false,
    meaning: 'an operation on a child that was never there or is forgotten',
  },
  SUP_CHILD_EXISTS: {
    template: 'supervisor %s has a child %s that is %s',
    retryable: true,
    meaning: 'startChild, restartChild or deleteChild of a child that is in the way',
  },
  SUP_TOO_MANY_CHILDREN: {
    template: 'supervisor %s holds %s children, its limit',
    retryable: true,
    meaning: 'startChild beyond maxChildren',
  },
  SUP_BUG: {
    template: 'supervisor %s failed in its own code',
    retryable: false,
    meaning: 'an invariant of supervision is broken; the cause says which',
  },
} as const satisfies Record<string, ErrorRow>;

export type SupervisionErrorCode = keyof typeof supervisionErrors;

export class SupervisionError extends Error {
  override readonly name = 'SupervisionError';
  readonly retryable: boolean;

  constructor(
    readonly code: SupervisionErrorCode,
    details: readonly (string | number)[],
    options?: ErrorOptions,
  ) {
    const row = supervisionErrors[code];
    let next = 0;
    super(`${code}: ${row.template.replace(/%s/g, () => String(details[next++] ?? '?'))}`, options);
    this.retryable = row.retryable;
  }
}

export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(`thrown: ${String(thrown)}`, { cause: thrown });
}
