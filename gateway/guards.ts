/**
 * Keeps web pages away from a server that asks for no key. A page of another site shows its Origin; a page that got here by
 * DNS rebinding shows its own name in Host. IP addresses in Host are safe: rebinding needs a name.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { isIP } from 'node:net';
import type { RequestError } from '../actors/index.js';
import { gatewayError } from './errors.js';

export interface Guard {
  check(headers: IncomingHttpHeaders): RequestError | undefined;
  /** CORS headers for a page of a configured origin; undefined for everybody else. */
  cors(headers: IncomingHttpHeaders): Record<string, string> | undefined;
}

/** `hosts`: names without port, `*` allows all. `origins`: scheme, host and port as browsers send them. */
export function createGuard(hosts: readonly string[], origins: readonly string[]): Guard {
  const names = new Set(hosts.map((host) => host.toLowerCase()));
  const pages = new Set(origins.map((origin) => origin.toLowerCase().replace(/\/$/, '')));
  const anyHost = names.has('*');

  const hostAllowed = (header: string | undefined): boolean => {
    const name = hostName(header);
    if (name === undefined) return false;
    return anyHost || name === 'localhost' || name.endsWith('.localhost') || isIP(name) !== 0 || names.has(name);
  };

  return {
    check(headers) {
      if (!hostAllowed(headers.host)) return gatewayError('GWY_HOST');
      const origin = headers.origin?.toLowerCase();
      if (origin === undefined || pages.has(origin)) return undefined;
      const own = headers.host?.toLowerCase();
      return origin === `http://${own}` || origin === `https://${own}` ? undefined : gatewayError('GWY_ORIGIN');
    },
    cors(headers) {
      const origin = headers.origin;
      if (origin === undefined || !pages.has(origin.toLowerCase())) return undefined;
      return {
        'access-control-allow-origin': origin,
        'access-control-expose-headers': 'x-request-id, openai-processing-ms, retry-after, retry-after-ms',
        vary: 'origin',
      };
    },
  };
}

/** The name in a Host header, brackets and port taken off. */
function hostName(header: string | undefined): string | undefined {
  const match = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?$/.exec(header?.toLowerCase() ?? '');
  return match?.[1] ?? match?.[2]?.replace(/\.$/, '');
}
