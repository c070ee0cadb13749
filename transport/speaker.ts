import type { Body, MessageType } from './messages.js';

/**
 * Who a message speaks for, as its body says; that must be its sender, or one process could answer, fail or offer blocks in another's name.
 * Not here: what is said of a third (Down), and what names nobody (Replica) or may come from either side (Cancel, KvRelease).
 */
const speakers: { readonly [T in MessageType]?: (body: Body<T>) => string } = {
  Accepted: ({ worker }) => worker,
  Refused: ({ worker }) => worker,
  Failed: ({ worker }) => worker,
  TakenBy: ({ worker }) => worker,
  Progress: ({ worker }) => worker,
  Taken: ({ taker }) => taker,
  Load: ({ incarnation }) => incarnation,
  Reserve: ({ reply }) => reply.gateway,
  Generate: ({ reply }) => reply.gateway,
  TakerLost: ({ reply }) => reply.gateway,
  Ended: ({ reply }) => reply.gateway,
  Resync: ({ reply }) => reply.gateway,
  Prefill: ({ decode }) => decode,
  RemotePrefill: ({ decode }) => decode,
  PrefillDone: ({ handoff }) => handoff.pool.owner,
  KvOffer: ({ pool }) => pool.owner,
};

/** Undefined: it says nothing of its sender. The body must fit its schema. */
export function speakerOf(type: MessageType, body: unknown): string | undefined {
  return speakers[type]?.(body as never);
}
