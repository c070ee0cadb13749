/**
 * A router among others: when it tells what it has placed, and what it makes of what they tell. Frames leave together, a few
 * milliseconds after the first change; nothing leaves where there is no other router, and nothing of it is waited for.
 */
import { type Envelope, parts } from '../../transport/index.js';
import type { Ctx, Ref } from '../kernel/contract.js';
import type { Caches } from './caches.js';
import type { Ledger } from './ledger.js';
import { ReplicaVoice } from './replica-voice.js';
import { type Claim, giveWayMs, Replicas } from './replicas.js';

export type ReplicaMessage =
  | Envelope<'Replica'>
  /** Another gateway is in the registry, or is not any more. */
  | { readonly type: 'PeerUp'; readonly incarnation: string }
  | { readonly type: 'PeerGone'; readonly incarnation: string }
  /** Answered as soon as the ledger has what all others have placed; at once if there are none. */
  | { readonly type: 'WhenInStep'; readonly replyTo: Ref<{ readonly type: 'InStep' }> }
  | { readonly type: 'ReplicaTell' }
  | { readonly type: 'ReplicaLook' }
  | { readonly type: 'GivenWay' };

export interface ReplicaSync {
  readonly voice: ReplicaVoice;
  readonly peers: Replicas;
  /** When the next frame goes out, by the router's clock; undefined: none is due. */
  tellAt: number | undefined;
  toldAt: number;
  looking: boolean;
  /** A look at what waits is due, when slots have been left to others for long enough. */
  waiting: boolean;
  /** Last own frame that the broker brought back. */
  echoed: number;
  /** Looks that still say that nothing is held any more: the last word may be lost. */
  lastWords: number;
  readonly inStepFor: Ref<{ readonly type: 'InStep' }>[];
}

type C = Ctx<ReplicaMessage>;

/**
 * Frames leave this far apart, or with so many changes, so that a busy router pays for a frame once for many requests. What comes after a
 * quiet time, and what somebody elsewhere waits for, leaves at once: routers that learn late of each other run after the same worker.
 */
const apartMs = 10;
const enough = 16;
const soonMs = 1;
const lookMs = 1_000;
const lastWords = 3;

export function replicaSync(self: string, ledger: Ledger, caches: Caches | undefined): ReplicaSync {
  return {
    voice: new ReplicaVoice(),
    peers: new Replicas(self, ledger, caches),
    tellAt: undefined,
    toldAt: Number.NEGATIVE_INFINITY,
    looking: false,
    waiting: false,
    echoed: 0,
    lastWords: 0,
    inStepFor: [],
  };
}

/** True: room may have come of it. */
export function replicaNews(sync: ReplicaSync, message: ReplicaMessage, ctx: C): boolean {
  const { voice, peers } = sync;
  switch (message.type) {
    case 'Replica':
      return heard(sync, message, ctx);
    case 'PeerUp':
      if (!peers.up(message.incarnation)) return false;
      voice.listeners = peers.size;
      // It may have missed whatever was said before, and there may be something to know of it.
      voice.snapshot();
      voice.ask(message.incarnation);
      look(sync, ctx);
      tellSoon(sync, ctx);
      return false;
    case 'PeerGone': {
      const gone = peers.gone(message.incarnation);
      voice.listeners = peers.size;
      answer(sync, ctx);
      return gone;
    }
    case 'WhenInStep':
      sync.inStepFor.push(message.replyTo);
      answer(sync, ctx);
      return false;
    case 'ReplicaTell':
      sync.tellAt = undefined;
      if (voice.dirty) tell(sync, ctx);
      return false;
    case 'ReplicaLook':
      sync.looking = false;
      return looked(sync, ctx);
    case 'GivenWay':
      sync.waiting = false;
      return true;
  }
}

/** To be called when something has changed: it goes out soon. */
export function tellSoon(sync: ReplicaSync, ctx: C): void {
  const { voice, peers } = sync;
  // One that starts asks before it is in the registry.
  if (!voice.dirty || (peers.size === 0 && !voice.owes)) return;
  const now = ctx.now();
  const urgent = voice.changes >= enough || peers.wanted || !peers.complete;
  const at = Math.max(now + soonMs, urgent ? 0 : sync.toldAt + apartMs);
  // One that becomes urgent does not wait for the earlier timer; what that one still finds then is nothing.
  if (sync.tellAt !== undefined && sync.tellAt <= at) return;
  sync.tellAt = at;
  ctx.after(at - now, { type: 'ReplicaTell' });
}

/** A free slot is left to a request that waits elsewhere; this one is looked at again soon. */
export function givesWay(sync: ReplicaSync, claim: Claim, free: () => number, ctx: C): boolean {
  if (!sync.peers.wanted || !sync.peers.givesWay(claim, free(), ctx.now())) return false;
  if (!sync.waiting) {
    sync.waiting = true;
    ctx.after(giveWayMs, { type: 'GivenWay' });
  }
  return true;
}
function heard(sync: ReplicaSync, { from, body }: Envelope<'Replica'>, ctx: C): boolean {
  const origin = parts(from).incarnation;
  const { voice, peers } = sync;
  if (origin === parts(ctx.address).incarnation) {
    sync.echoed = Math.max(sync.echoed, body.seq);
    return false;
  }
  const { ask, asked, room } = peers.hear(origin, body, ctx.now());
  if (ask) voice.ask(origin);
  if (asked) voice.snapshot();
  if (ask || asked) tellSoon(sync, ctx);
  answer(sync, ctx);
  return room;
}

function tell(sync: ReplicaSync, ctx: C): void {
  const { voice } = sync;
  const now = ctx.now();
  const laterMs = voice.snapshotIn(now);
  sync.toldAt = now;
  for (const frame of voice.frames(now)) ctx.frame(ctx.address, 'Replica', frame, head);
  if (laterMs > 0) {
    sync.tellAt = now + laterMs;
    ctx.after(laterMs, { type: 'ReplicaTell' });
  }
}

function look(sync: ReplicaSync, ctx: C): void {
  if (sync.looking || sync.peers.size === 0) return;
  sync.looking = true;
  ctx.after(lookMs, { type: 'ReplicaLook' });
}

/** Once a second: says that it lives while there is something to say, and judges who is silent. */
function looked(sync: ReplicaSync, ctx: C): boolean {
  const { voice, peers } = sync;
  const through = sync.echoed >= voice.seq;
  const { ask, room } = peers.look(through);
  for (const origin of ask) voice.ask(origin);
  // What is said while the broker is away is said to nobody, also of a request that came and went between two looks.
  if (voice.held > 0 || voice.waiting > 0 || !through) sync.lastWords = lastWords + 1;
  else if (sync.lastWords > 0) sync.lastWords--;
  if (voice.dirty || sync.lastWords > 0) tell(sync, ctx);
  look(sync, ctx);
  answer(sync, ctx);
  return room;
}

function answer({ peers, inStepFor }: ReplicaSync, ctx: C): void {
  if (inStepFor.length === 0 || (peers.size > 0 && !peers.complete)) return;
  for (const replyTo of inStepFor.splice(0)) ctx.tell(replyTo, { type: 'InStep' });
}

const head = { req: '', attempt: 0, budgetMs: lookMs } as const;
