/** What the kernel can complain about. Matched by code, never by text. */

interface ErrorRow {
  readonly template: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly meaning: string;
}

const actorErrors = {
  ACT_NAME_TAKEN: {
    template: 'an actor lives at %s already',
    retryable: true,
    meaning: 'spawn at an address whose actor has not ended; wait for its exit first',
  },
  ACT_KERNEL_DOWN: {
    template: 'the kernel is shutting down; %s is not spawned',
    retryable: false,
    meaning: 'spawn after shutdown was called',
  },
  ACT_MAILBOX_FULL: {
    template: 'mailbox of %s is full (%s messages)',
    retryable: false,
    meaning: 'an actor whose overflow policy is crash got one message more than it may hold',
  },
  ACT_OWED_LIMIT: {
    template: '%s waits for more than %s timers, answers and results',
    retryable: false,
    meaning: 'an actor starts asks, timers or queries faster than they end: a leak; the actor fails',
  },
  ACT_ASYNC: {
    template: 'behaviour %s returned a promise from %s; behaviours are synchronous, results come back as messages',
    retryable: false,
    meaning: 'a behaviour is async: a bug; the actor fails',
  },
  ACT_REENTRANT: {
    template: '%s is handling a message already',
    retryable: false,
    meaning: 'the dispatcher was run from inside a handler: a bug',
  },
  ACT_TIMEOUT: {
    template: 'no answer from %s within %s ms',
    retryable: true,
    meaning: 'the deadline of an ask or a piped promise passed',
  },
  ACT_UNDELIVERED: {
    template: 'question to %s is a dead letter (%s)',
    retryable: true,
    meaning: 'an ask from outside met an actor that has ended or is full',
  },
  ACT_FOREIGN_REF: {
    template: '%s is not an actor of this kernel',
    retryable: false,
    meaning: 'a reply reference or a forged object where an actor is needed',
  },
  ACT_POST: {
    template: 'post failed: %s',
    retryable: true,
    meaning: 'the post threw something without a code of its own',
  },
} as const satisfies Record<string, ErrorRow>;

export type ActorErrorCode = keyof typeof actorErrors;

export class ActorError extends Error {
  override readonly name = 'ActorError';
  readonly retryable: boolean;

  constructor(
    readonly code: ActorErrorCode,
    details: readonly (string | number)[],
    options?: ErrorOptions,
  ) {
    const row = actorErrors[code];
    let next = 0;
    super(`${code}: ${row.template.replace(/%s/g, () => String(details[next++] ?? '?'))}`, options);
    this.retryable = row.retryable;
  }
}

/** Whatever was thrown, as an Error; the thing itself stays as `cause`. */
export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(`thrown: ${String(thrown)}`, { cause: thrown });
}

/** The thrown error's own code, or ACT_POST. */
export function codeOf(thrown: unknown): string {
  const code = (thrown as { readonly code?: unknown } | null | undefined)?.code;
  return typeof code === 'string' && code !== '' ? code : 'ACT_POST';
}
