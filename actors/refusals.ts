/**
 * What a refusal or a failure means, in one table: design 8.2 and 9. A code that is not listed is treated as
 * `internal`: an unknown answer is never a reason to hang.
 */
import type { RequestError } from './frontend/ports.js';

export interface RefusalMeaning {
  /** Another worker may succeed: the request migrates. */
  readonly elsewhere: boolean;
  /** Who is at fault, and kept out of routing for a while: the worker, or what lies between the two of a pair. */
  readonly inhibit: 'no' | 'worker' | 'pair';
  /** The worker will not come back under this incarnation: drop it from view. */
  readonly drop: boolean;
  /** HTTP status when no attempt is left. */
  readonly status: number;
  /** What the client reads. `%s` is a detail: the worker's own message where it speaks of the client's input, or what came before. */
  readonly text: string;
}

const row = (
  elsewhere: boolean,
  inhibit: RefusalMeaning['inhibit'],
  drop: boolean,
  status: number,
  text: string,
): RefusalMeaning => ({
  elsewhere,
  inhibit,
  drop,
  status,
  text,
});

export const refusals = {
  // the engine
  GPU_FULL: row(true, 'no', false, 529, 'All workers for this model are full.'),
  GPU_TOO_LONG: row(false, 'no', false, 400, '%s'),
  GPU_BAD_REQUEST: row(false, 'no', false, 400, '%s'),
  GPU_UNKNOWN_KEY: row(true, 'no', false, 503, 'The worker lost the request.'),
  GPU_DECODE_FAILED: row(true, 'worker', false, 503, 'The engine failed on this request.'),
  GPU_HANDOFF_MISMATCH: row(true, 'pair', false, 503, 'The KV hand-off failed verification.'),
  GPU_HANDOFF_GONE: row(true, 'pair', false, 503, 'The KV hand-off was lost.'),
  GPU_POOL_FULL: row(true, 'no', false, 529, 'The prefill worker has no room to hand over KV.'),
  GPU_STOPPED: row(true, 'no', true, 503, 'The engine stopped.'),
  // the worker
  WRK_DRAINING: row(true, 'no', true, 503, 'The worker is shutting down.'),
  WRK_WRONG_MODEL: row(true, 'no', false, 503, 'The worker serves another model.'),
  WRK_WRONG_INCARNATION: row(true, 'no', true, 503, 'The worker was restarted.'),
  WRK_UNKNOWN_ACTOR: row(true, 'no', false, 503, 'The worker knows no such mailbox.'),
  // The mail aged through an outage of the broker, perhaps, while the request's own clock stood still: that one decides.
  WRK_EXPIRED: row(true, 'no', false, 504, 'The deadline of the request passed before a worker took it.'),
  WRK_TOO_MANY: row(true, 'no', false, 529, 'The worker holds as many requests as it may.'),
  WRK_GRANT_LAPSED: row(true, 'pair', false, 503, 'The prompt was not computed in time.'),
  WRK_MALFORMED: row(false, 'no', false, 500, 'A worker could not read the request.'),
  /** Handling a message of the request threw: on this worker, and where nothing was computed yet, repeatedly. */
  WRK_FAILED: row(true, 'no', false, 500, 'A worker failed on the request.'),
  WRK_POISON: row(false, 'no', false, 500, 'Workers failed on the request each time they tried.'),
  /** Decode-first: each died or fell silent, so the prompt may be to blame. */
  WRK_JOB_DEAD: row(false, 'no', false, 500, 'Prefill workers were lost on the request each time they tried.'),
  // what the frontend sees by itself
  WORKER_SILENT: row(true, 'worker', false, 503, 'The worker fell silent.'),
  ENGINE_WEDGED: row(true, 'worker', false, 503, 'The engine of the worker stands still.'),
  WORKER_DOWN: row(true, 'no', true, 503, 'The worker died.'),
  /** Chosen, and not in the registry: it is gone, or never was. */
  WORKER_UNKNOWN: row(true, 'no', true, 503, 'The worker does not exist any more.'),
  ACCEPT_TIMEOUT: row(true, 'worker', false, 503, 'The worker did not answer in time.'),
  FIRST_TOKEN_TIMEOUT: row(true, 'worker', false, 504, 'No token came in time.'),
  TOKEN_TIMEOUT: row(true, 'worker', false, 504, 'The tokens stopped coming.'),
  STREAM_BROKEN: row(true, 'worker', false, 503, 'The token stream broke.'),
  POISON_PROMPT: row(false, 'no', false, 500, 'Workers died of this prompt; it is kept out for 10 minutes.'),
  QUEUE_TIMEOUT: row(false, 'no', false, 503, 'No worker became free in time.%s'),
  TOTAL_TIMEOUT: row(false, 'no', false, 504, 'The request took longer than it may.'),
  NO_WORKER: row(false, 'no', false, 503, 'No worker serves this model at the moment.%s'),
  TOO_MANY_CHOICES: row(false, 'no', false, 400, 'n is larger than the number of slots of a worker.'),
  // what the router says of a request's own wishes
  NO_SUCH_WORKER: row(false, 'no', false, 404, 'The worker that the request asks for does not exist.'),
  UNPINNED: row(false, 'no', false, 400, 'Routing mode direct: the request must name its worker.'),
  WISHES_UNMET: row(false, 'no', false, 503, 'No worker is as the request asks for.'),
  ALL_BUSY: row(false, 'no', false, 529, 'All workers for this model are busy.'),
  PINNED_BUSY: row(false, 'no', false, 529, 'The worker that the request asks for is busy.'),
  NO_PLACE: row(false, 'no', false, 529, 'No worker has room at the moment.'),
  CLASS_FULL: row(false, 'no', false, 429, 'Too many requests of this class are waiting.'),
  QUEUE_FULL: row(false, 'no', false, 529, 'Too many requests are waiting.'),
  GATEWAY_FULL: row(false, 'no', false, 529, 'This gateway holds as many requests as it may.'),
  BROKER_DOWN: row(false, 'no', false, 503, 'The message broker is away.'),
  DRAINING: row(false, 'no', false, 503, 'This gateway is shutting down.'),
  NET_OUTBOX_FULL: row(false, 'no', false, 503, 'Too many messages wait for the broker.'),
  // Every worker is reached through the same broker: trying another one would only take longer.
  NET_REFUSED: row(false, 'no', false, 503, 'The message broker refused a message; its store may be full.'),
  NET_TIMEOUT: row(true, 'no', false, 503, 'The broker did not store a message in time.'),
  // What a worker says of mail it cannot read. It is not ill: whoever wrote the mail is, or is newer.
  NET_MALFORMED: row(false, 'no', false, 500, 'A worker could not read the request.'),
  NET_TOO_LARGE: row(false, 'no', false, 500, 'A worker could not read the request.'),
  NET_INCOMPLETE: row(true, 'no', false, 503, 'A part of the request was lost on the way to a worker.'),
  NET_UNKNOWN_TYPE: row(true, 'no', false, 503, 'The worker is of another version.'),
  NET_VERSION: row(true, 'no', false, 503, 'The worker is of another version.'),
  NET_CLOSED: row(false, 'no', false, 503, 'This gateway is shutting down.'),
  INTERNAL: row(true, 'worker', false, 500, 'Something went wrong inside.'),
} as const satisfies Record<string, RefusalMeaning>;

export type RefusalCode = keyof typeof refusals;

export function meaningOf(code: string): RefusalMeaning {
  return Object.hasOwn(refusals, code) ? refusals[code as RefusalCode] : refusals.INTERNAL;
}

/** It would have taken the request, had it had room. */
export const isFull = (code: string): boolean => ['GPU_FULL', 'GPU_POOL_FULL', 'WRK_TOO_MANY'].includes(code);

const types: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  404: 'invalid_request_error',
  429: 'rate_limit_error',
};

/** How a code reads to an HTTP client (design 9). */
export function clientError(code: string, detail: string): RequestError {
  const { status, text } = meaningOf(code);
  const waiting = status === 429 || status === 503 || status === 529;
  return {
    status,
    type: types[status] ?? (waiting ? 'service_unavailable_error' : 'server_error'),
    code: code === 'GPU_TOO_LONG' ? 'context_length_exceeded' : code.toLowerCase(),
    param: null,
    message: text.replace('%s', () => detail),
    ...(waiting ? { retryAfterMs: 1000 } : {}),
    ...(code === 'POISON_PROMPT' ? { final: true } : {}),
  };
}
