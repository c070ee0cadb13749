/** What a node asks its gateways for `dynact route`, each of which has a router of its own, and for `dynact config set`. */
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

export type SettingQuestion =
  /** `value` undefined: what is configured holds again. */
  { readonly type: 'set'; readonly key: string; readonly value?: string | number } | { readonly type: 'settings' };

export type SettingAnswer =
  /** What is set now, by key, and differs from the configuration. */
  | { readonly gateway: string; readonly settings: Readonly<Record<string, unknown>> }
  | { readonly gateway: string; readonly error: string };

export type GatewayQuestion = RouteQuestion | SettingQuestion;
export type GatewayAnswer = RouteAnswer | SettingAnswer;

/** Of unchecked JSON. Throws TypeError. */
export function gatewayQuestion(given: unknown): GatewayQuestion {
  const { type, id, prompt, key, value } = (given ?? {}) as Readonly<Record<string, unknown>>;
  if (type === 'explain' && typeof id === 'string') return { type, id };
  if (type === 'dry-run' && typeof prompt === 'string') return { type, prompt };
  if (type === 'settings') return { type };
  if (type === 'set' && typeof key === 'string') {
    if (value === undefined) return { type, key };
    if (typeof value === 'string' || typeof value === 'number') return { type, key, value };
  }
  throw new TypeError('no such question');
}
