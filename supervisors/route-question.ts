/** What `dynact route` asks every gateway of a node, each of which has a router of its own. */
import type { RouteRecord } from '../actors/index.js';

export type RouteQuestion =
  /** Why did this request go where it went? */
  | { readonly type: 'explain'; readonly id: string }
  /** Where would a chat with this message go now? Nothing is booked or computed. */
  | { readonly type: 'dry-run'; readonly prompt: string };

export type RouteAnswer =
  /** Explain: no records where the request is not known. */
  | {
      readonly gateway: string;
      readonly records: readonly RouteRecord[];
      /** From the tape, and not from the gateway. `unlike`: decisions that come out otherwise when they are made again. */
      readonly taped?: { readonly unlike: number };
    }
  | { readonly gateway: string; readonly error: string };

/** Of unchecked JSON. Throws TypeError. */
export function routeQuestion(value: unknown): RouteQuestion {
  const { type, id, prompt } = (value ?? {}) as Readonly<Record<string, unknown>>;
  if (type === 'explain' && typeof id === 'string') return { type, id };
  if (type === 'dry-run' && typeof prompt === 'string') return { type, prompt };
  throw new TypeError('no such question');
}
