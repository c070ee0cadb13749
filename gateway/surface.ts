/** The APIs that generate, and what differs between them beside their bodies: how each says that something went wrong. */
import type { Api, RequestError } from '../actors/index.js';
import { errorBody } from './errors.js';

export interface Surface {
  /** In metrics and logs. */
  readonly name: 'chat' | 'completion' | 'messages' | 'responses';
  /** What the frontend makes of the body. */
  readonly api: Api;
  /** Body of an error response. `label`: the request's id as its client knows it. */
  error(error: RequestError, label: string): string;
}

const openai = (error: RequestError) => errorBody(error);

/** Anthropic's types by status; others by their class. */
const types: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

/** Anthropic's error, as the body of a response and as the last event of a stream. */
export function anthropicError({ status, message }: RequestError, label: string): string {
  const type = types[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
  return JSON.stringify({ type: 'error', error: { type, message }, request_id: label });
}

export const surfaces = {
  chat: { name: 'chat', api: 'chat', error: openai },
  completion: { name: 'completion', api: 'completion', error: openai },
  messages: { name: 'messages', api: 'chat', error: anthropicError },
  responses: { name: 'responses', api: 'chat', error: openai },
} as const satisfies Record<string, Surface>;

/** How a route's errors look, for those that are told before its handler runs. */
export const surfaceOf = (url: string): Surface => (url.startsWith('/v1/messages') ? surfaces.messages : surfaces.chat);
