/**
 * A request body as a value. Strict where a later reader could be surprised: broken UTF-8 and deep nesting are refused.
 * Of repeated keys the last one counts, as in every JSON.parse; `__proto__` is an ordinary key and touches no prototype.
 */
import type { RequestError } from '../actors/index.js';
import { gatewayError } from './errors.js';

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const utf8 = new TextDecoder('utf-8', { fatal: true });

export type ParsedBody =
  | { readonly ok: true; readonly body: unknown }
  | { readonly ok: false; readonly error: RequestError };

export function parseBody(bytes: Uint8Array, depth: number): ParsedBody {
  if (bytes.length === 0) return { ok: false, error: gatewayError('GWY_BODY_EMPTY') };
  let text: string;
  try {
    text = utf8.decode(bytes);
  } catch {
    return { ok: false, error: gatewayError('GWY_BODY_UTF8') };
  }
  if (deeperThan(text, depth)) return { ok: false, error: gatewayError('GWY_BODY_DEPTH', [depth]) };
  try {
    return { ok: true, body: JSON.parse(text) };
  } catch {
    // The parser's own message quotes the body; ours does not.
    return { ok: false, error: gatewayError('GWY_BODY_JSON') };
  }
}

const quote = 0x22;
const backslash = 0x5c;

/** Looks at brackets only, jumps over strings, so that a megabyte of prompt costs one search. */
function deeperThan(text: string, limit: number): boolean {
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === 0x5b || char === 0x7b) {
      if (++depth > limit) return true;
    } else if (char === 0x5d || char === 0x7d) {
      depth--;
    } else if (char === quote) {
      at = endOfString(text, at);
      if (at < 0) return false; // Unterminated: the parser will say so.
    }
  }
  return false;
}

function endOfString(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let slashes = 0;
    while (text.charCodeAt(end - 1 - slashes) === backslash) slashes++;
    if (slashes % 2 === 0) return end;
  }
  return -1;
}
