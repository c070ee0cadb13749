/**
 * What the gateway itself can answer with, beside what the frontend's `fail` brings. One row: HTTP status, OpenAI's `type`
 * and `code`, message template (%s), whether the same request may succeed later, meaning.
 */
import type { RequestError } from '../actors/index.js';

interface Row {
  readonly status: number;
  readonly type: 'invalid_request_error' | 'permission_error' | 'server_error' | 'rate_limit_error';
  readonly code: string | null;
  readonly message: string;
  readonly retryable: boolean;
  readonly meaning: string;
}

const fault = (status: number, code: string | null, message: string, meaning: string): Row => ({
  status,
  type: 'invalid_request_error',
  code,
  message,
  retryable: false,
  meaning,
});
const server = (status: number, code: string, message: string, retryable: boolean, meaning: string): Row => ({
  status,
  type: 'server_error',
  code,
  message,
  retryable,
  meaning,
});

export const gatewayErrors = {
  GWY_BAD_VALUE: fault(400, null, '%s', 'a field of the body has a value that is not allowed'),
  GWY_UNSUPPORTED: fault(400, 'unsupported_parameter', '%s', 'a feature of the API that is not served'),
  GWY_BODY_SHAPE: fault(400, null, 'The request body must be a JSON object.', 'valid JSON, but no object'),
  GWY_BODY_JSON: fault(400, 'invalid_json', 'The request body is not valid JSON.', 'the body cannot be parsed'),
  GWY_BODY_UTF8: fault(400, 'invalid_utf8', 'The request body is not valid UTF-8.', 'the body has broken characters'),
  GWY_BODY_DEPTH: fault(400, 'invalid_json', 'The request body is nested deeper than %s levels.', 'depth is bounded'),
  GWY_BODY_EMPTY: fault(400, 'invalid_json', 'The request body is empty.', 'a POST without a body'),
  GWY_BODY_LARGE: fault(413, 'request_too_large', 'The request body is larger than %s bytes.', 'over `bodyBytes`'),
  GWY_MEDIA_TYPE: fault(
    415,
    'unsupported_media_type',
    'The content type must be application/json in UTF-8.',
    'another content type: a web page can send those without asking',
  ),
  GWY_CONTEXT: fault(400, 'context_length_exceeded', '%s', 'prompt and answer do not fit the context'),
  GWY_MODEL_UNKNOWN: fault(404, 'model_not_found', 'The model %s does not exist.', 'no such model is served'),
  GWY_TEMPLATE_REFUSED: fault(
    400,
    'invalid_messages',
    "The model's chat template refuses these messages: %s",
    'the template raised an exception, e.g. on the order of roles',
  ),
  GWY_ROUTE: fault(404, 'unknown_url', 'Unknown request URL: %s %s.', 'no such route'),
  GWY_METHOD: fault(405, 'method_not_allowed', 'Not allowed: %s on %s.', 'the route exists for another method'),
  GWY_HTTP: fault(400, 'bad_request', 'The request is not valid HTTP.', 'refused by the HTTP parser'),
  GWY_EXPECTATION: fault(417, 'expectation_failed', 'The Expect header cannot be met.', 'other than 100-continue'),
  GWY_HEADERS_LARGE: fault(431, 'headers_too_large', 'The request headers are too large.', 'over the parser limit'),
  GWY_REQUEST_SLOW: fault(408, 'request_timeout', 'The request did not arrive in time.', 'a slow or stalled upload'),
  GWY_HOST: {
    status: 403,
    type: 'permission_error',
    code: 'host_not_allowed',
    message: 'The Host header names no allowed host. Add it to http.allowedHosts.',
    retryable: false,
    meaning: 'a name that is neither loopback, an IP address nor configured: DNS rebinding',
  },
  GWY_ORIGIN: {
    status: 403,
    type: 'permission_error',
    code: 'origin_not_allowed',
    message: 'Pages of this origin may not use this server. Add it to http.allowedOrigins.',
    retryable: false,
    meaning: 'a web page of another origin',
  },
  GWY_NOT_LOCAL: {
    status: 403,
    type: 'permission_error',
    code: 'local_only',
    message: 'This route is for clients on the same machine.',
    retryable: false,
    meaning: 'an operator’s route, asked from elsewhere',
  },
  GWY_SETTINGS: server(503, 'settings_unavailable', 'The settings cannot be stored now.', true, 'the broker is away'),
  GWY_BUSY: server(503, 'overloaded', 'The server is busy. Try again shortly.', true, 'the frontend mailbox is full'),
  GWY_STOPPING: server(503, 'shutting_down', 'The server is shutting down.', true, 'draining, or its deadline passed'),
  GWY_TEMPLATE_BROKEN: server(
    500,
    'chat_template_error',
    "The model's chat template cannot be rendered.",
    false,
    'the template does not compile or uses something unknown',
  ),
  GWY_TOKENIZER: server(500, 'tokenizer_error', 'The prompt could not be tokenized.', false, 'the vocabulary threw'),
  GWY_INTERNAL: server(500, 'internal_error', 'Internal server error.', false, 'a defect; see the log'),
} as const satisfies Record<string, Row>;

export type GatewayErrorCode = keyof typeof gatewayErrors;

/** A row as the answer to one request. `args` fill the template in order. */
export function gatewayError(
  name: GatewayErrorCode,
  args: readonly (string | number)[] = [],
  param: string | null = null,
): RequestError {
  const row: Row = gatewayErrors[name];
  let next = 0;
  const message = row.message.replace(/%s/g, () => String(args[next++] ?? ''));
  const error = { status: row.status, type: row.type, code: row.code, param, message };
  return row.retryable ? { ...error, retryAfterMs: 1000 } : error;
}

/** A client's text inside an error message: short, quoted, without control characters. */
export function excerpt(text: string): string {
  const cut = text.length > 64 ? `${text.slice(0, 64)}…` : text;
  return JSON.stringify(cut.replace(/\p{Surrogate}/gu, '\ufffd'));
}

/** OpenAI's error body. */
export function errorBody(error: RequestError): string {
  const { message, type, param, code } = error;
  return JSON.stringify({ error: { message, type, param, code } });
}

/** Headers that go with an error: when to come back, and whether to come back at all. */
export function errorHeaders(error: RequestError): Record<string, string> {
  if (error.retryAfterMs !== undefined) {
    // Both: some clients read only the one in seconds.
    return {
      'retry-after': String(Math.max(1, Math.ceil(error.retryAfterMs / 1000))),
      'retry-after-ms': String(Math.max(0, Math.round(error.retryAfterMs))),
    };
  }
  const final = error.final === true || (error.status < 500 && error.status !== 429);
  return final ? { 'x-should-retry': 'false' } : {};
}
