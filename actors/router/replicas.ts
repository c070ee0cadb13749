/**
 * What the other routers of the namespace have placed, and what waits there: their dispatches stand in this router's ledger beside its own.
 * Best effort: a frame that is missing is noticed by its number, or by a count that does not fit, and mended by a snapshot; a router that
 * leaves, or says nothing for ten seconds while the broker is there, takes its entries with it. Pure: time comes in.
 */
import type { Caches } from './caches.js';
import type { EntryKey, Ledger } from './ledger.js';
import type { ReplicaFrame } from './replica-voice.js';

/** Requests of one other router: more than a gateway may hold. */
const mostRequests = 20_000;
const mostPeers = 256;
/** Looks (one a second) without a word of a router that has requests: asked after, and given up. */
const askAfter = 3;
const goneAfter = 10;
/** A request that waits elsewhere goes first if it came so much earlier: frames are on their way for a while. */
const earlierMs = 50;
/** For as long is a free slot left to the one that is next elsewhere; if it has not taken it by then, it cannot. */
export const giveWayMs = 200;

/** A request of another router, by the names of its ledger entries. */
interface Theirs {
  readonly attempt: number;
  readonly decode: string;
  readonly prefill: string | undefined;
}

interface TheirWait {
  readonly requests: number;
  readonly next: number;
  /** By this router's clock. */
  readonly queueBy: number;
  /** Since when slots are left to it. */
  givenAt: number | undefined;
}

interface Peer {
  /** Of its last frame. */
  seq: number;
  /** Everything it has placed is in the ledger, and nothing else. */
  inStep: boolean;
  silent: number;
  readonly held: Map<number, Theirs>;
  /** Of a snapshot that is coming in: the part that is next, and the requests so far. */
  whole: { next: number; readonly seen: Set<number> } | undefined;
  /** By model and kind. */
  waiting: ReadonlyMap<string, TheirWait>;
}

export interface ReplicaFacts {
  readonly peers: number;
  /** Others whose dispatches are not, or not exactly, known at the moment. */
  readonly outOfStep: number;
  readonly requests: number;
  readonly frames: number;
  readonly snapshots: number;
  /** Frames that were missing, or after which the counts did not fit. */
  readonly gaps: number;
  /** Frames that came twice or late, and of those that the registry does not know. */
  readonly stale: number;
  readonly strangers: number;
  /** Requests that could not be taken in: past the bound, or of a worker without a name. */
  readonly refused: number;
  /** How often a free slot was left to a request that waits elsewhere. */
  readonly gaveWay: number;
}

export interface Heard {
  /** A snapshot of `origin` is needed. */
  readonly ask: boolean;
  /** Slots are free again, or the one that was given way to has gone: what waits is worth another look. */
  readonly room: boolean;
  /** It has asked for this router's. */
  readonly asked: boolean;
}

/** What a request is to those that wait elsewhere. */
export interface Claim {
  readonly model: string;
  readonly again: boolean;
  readonly queueBy: number;
  readonly units: number;
}

const nothing: Heard = { ask: false, room: false, asked: false };
const kindKey = ({ model, again }: Pick<Claim, 'model' | 'again'>) => `${again ? 1 : 0}${model}`;

export class Replicas {
  readonly #self: string;
  readonly #ledger: Ledger;
  readonly #caches: Caches | undefined;
  readonly #peers = new Map<string, Peer>();
  readonly #counters = { frames: 0, snapshots: 0, gaps: 0, stale: 0, strangers: 0, refused: 0, gaveWay: 0 };

  constructor(self: string, ledger: Ledger, caches: Caches | undefined) {
    this.#self = self;
    this.#ledger = ledger;
    this.#caches = caches;
  }

  get size(): number {
    return this.#peers.size;
  }

  /** Every other router's dispatches are in the ledger, and there are others. */
  get complete(): boolean {
    if (this.#peers.size === 0) return false;
    for (const peer of this.#peers.values()) if (!peer.inStep) return false;
    return true;
  }

  /** Something waits elsewhere: what is freed here should be known there soon. */
  get wanted(): boolean {
    for (const { waiting } of this.#peers.values()) if (waiting.size > 0) return true;
    return false;
  }

  /** False: it is known, it is this one, or there are too many. */
  up(origin: string): boolean {
    if (origin === this.#self || this.#peers.has(origin) || this.#peers.size >= mostPeers) return false;
    this.#peers.set(origin, {
      seq: 0,
      inStep: false,
      silent: 0,
      held: new Map(),
      whole: undefined,
      waiting: new Map(),
    });
    return true;
  }

  /** It has left the registry, or was declared dead. */
  gone(origin: string): boolean {
    const peer = this.#peers.get(origin);
    if (peer === undefined) return false;
    this.#drop(origin, peer);
    return this.#peers.delete(origin);
  }

  hear(origin: string, frame: ReplicaFrame, now: number): Heard {
    const asked = frame.want.includes(this.#self);
    const peer = this.#peers.get(origin);
    if (peer === undefined) {
      // One that starts asks before the registry has it.
      this.#counters.strangers++;
      return { ...nothing, asked };
    }
    this.#counters.frames++;
    if (frame.seq <= peer.seq) {
      this.#counters.stale++;
      return { ...nothing, asked };
    }
    const missed = frame.seq > peer.seq + 1;
    peer.seq = frame.seq;
    peer.silent = 0;
    // Also after a hole: what it says is nearer to the truth than what is known.
    const freed = this.#apply(origin, peer, frame, now);
    const taken = this.#waits(peer, frame, now);
    const whole = this.#followWhole(origin, peer, frame, missed);
    const fits = frame.held === undefined || frame.held === peer.held.size;
    if (!whole && peer.inStep && (missed || !fits)) {
      peer.inStep = false;
      this.#counters.gaps++;
    }
    return { ask: !peer.inStep && peer.whole === undefined, room: freed || taken, asked };
  }

  /**
   * Once a second. `echoed`: the broker has brought back all that this router has said, so silence is that of the others. Returns whose
   * snapshots are needed, and whether entries were given up.
   */
  look(echoed: boolean): { readonly ask: readonly string[]; readonly room: boolean } {
    const ask: string[] = [];
    let room = false;
    for (const [origin, peer] of this.#peers) {
      peer.whole = undefined;
      if (echoed) peer.silent++;
      if (!peer.inStep) ask.push(origin);
      else if ((peer.held.size > 0 || peer.waiting.size > 0) && peer.silent >= askAfter) ask.push(origin);
      if (peer.silent < goneAfter || (peer.held.size === 0 && peer.waiting.size === 0)) continue;
      this.#drop(origin, peer);
      peer.inStep = false;
      room = true;
    }
    return { ask, room };
  }

  /** Of this request's kind, or of one that goes before it, does the next elsewhere need one of the `free` slots? At most for a while each. */
  givesWay(claim: Claim, free: number, now: number): boolean {
    if (free < claim.units) return false;
    let ahead = 0;
    const given: TheirWait[] = [];
    for (const { waiting } of this.#peers.values()) {
      const standing = waiting.get(kindKey({ ...claim, again: true }));
      const like = claim.again ? standing : waiting.get(kindKey(claim));
      if (standing !== undefined && !claim.again && this.#patient(standing, now)) {
        ahead += standing.requests;
        given.push(standing);
      }
      if (like !== undefined && like.queueBy + earlierMs < claim.queueBy && this.#patient(like, now)) {
        ahead++;
        given.push(like);
      }
    }
    if (ahead === 0 || free - ahead >= claim.units) return false;
    for (const each of given) each.givenAt ??= now;
    this.#counters.gaveWay++;
    return true;
  }

  facts(): ReplicaFacts {
    const peers = [...this.#peers.values()];
    return {
      peers: peers.length,
      outOfStep: peers.filter(({ inStep }) => !inStep).length,
      requests: peers.reduce((sum, { held }) => sum + held.size, 0),
      ...this.#counters,
    };
  }

  #patient({ givenAt }: TheirWait, now: number): boolean {
    return givenAt === undefined || now - givenAt < giveWayMs;
  }

  /** Returns whether slots were freed. */
  #apply(origin: string, peer: Peer, frame: ReplicaFrame, now: number): boolean {
    let room = false;
    for (const placed of frame.placed) this.#place(origin, peer, frame, placed, now);
    for (const num of frame.began) this.#began(origin, peer, num);
    for (const num of frame.handed) room = this.#handed(origin, peer, num) || room;
    for (const num of frame.over) room = this.#over(origin, peer, num) || room;
    return room;
  }

  #place(origin: string, peer: Peer, frame: ReplicaFrame, placed: ReplicaFrame['placed'][number], now: number): void {
    const { num, attempt, stage, units, promptTokens, toCompute } = placed;
    const decode = frame.workers[placed.decode];
    const prefill = placed.prefill === undefined ? undefined : frame.workers[placed.prefill];
    const unnamed = decode === undefined || (placed.prefill !== undefined && prefill === undefined);
    this.#over(origin, peer, num);
    if (unnamed || peer.held.size >= mostRequests) {
      // The count of the last frame will not fit, which asks for all of it again.
      this.#counters.refused++;
      return;
    }
    // 64-bit views need their bytes aligned, and these lie somewhere in a frame.
    const hashes = new BigUint64Array(Uint8Array.from(placed.hashes).buffer);
    const entry = { origin, num, attempt, promptTokens, hashes, at: now };
    const onDecode = prefill === undefined ? toCompute : 0;
    this.#ledger.add({ ...entry, incarnation: decode, units, prefillTokens: onDecode });
    if (prefill !== undefined) {
      this.#ledger.add({ ...entry, incarnation: prefill, units: 1, prefillTokens: toCompute });
    }
    peer.held.set(num, { attempt, decode, prefill });
    if (stage >= 1) this.#began(origin, peer, num);
    if (stage >= 2) this.#handed(origin, peer, num);
    // What runs already was assumed, or reported, before.
    if (stage === 0 && frame.part === undefined) this.#caches?.assume(prefill ?? decode, hashes, now);
  }

  #began(origin: string, peer: Peer, num: number): void {
    const theirs = peer.held.get(num);
    if (theirs !== undefined) this.#ledger.prefillDone(keyOf(origin, num, theirs, theirs.prefill ?? theirs.decode));
  }

  #handed(origin: string, peer: Peer, num: number): boolean {
    const theirs = peer.held.get(num);
    return theirs?.prefill !== undefined && this.#ledger.free(keyOf(origin, num, theirs, theirs.prefill));
  }

  #over(origin: string, peer: Peer, num: number): boolean {
    const theirs = peer.held.get(num);
    if (theirs === undefined) return false;
    peer.held.delete(num);
    if (theirs.prefill !== undefined) this.#ledger.free(keyOf(origin, num, theirs, theirs.prefill));
    this.#ledger.free(keyOf(origin, num, theirs, theirs.decode));
    return true;
  }

  /** Follows the parts of a snapshot. True: it is whole now, and what it did not name is gone. */
  #followWhole(origin: string, peer: Peer, { part, placed }: ReplicaFrame, missed: boolean): boolean {
    if (part === undefined) {
      // Changes come between snapshots, not within one.
      peer.whole = undefined;
      return false;
    }
    const [at, of] = part;
    if (at === 0) peer.whole = { next: 0, seen: new Set() };
    const { whole } = peer;
    if (whole === undefined || whole.next !== at || (missed && at > 0)) {
      peer.whole = undefined;
      return false;
    }
    for (const { num } of placed) whole.seen.add(num);
    whole.next++;
    if (whole.next < of) return false;
    for (const num of [...peer.held.keys()]) if (!whole.seen.has(num)) this.#over(origin, peer, num);
    peer.whole = undefined;
    peer.inStep = peer.held.size === whole.seen.size;
    this.#counters.snapshots++;
    return peer.inStep;
  }

  /** Returns whether whoever slots were left to has taken one, or gave up. */
  #waits(peer: Peer, frame: ReplicaFrame, now: number): boolean {
    // The last frame of several says who waits.
    if (frame.held === undefined) return false;
    const before = peer.waiting;
    const after = new Map<string, TheirWait>();
    for (const wait of frame.waiting) {
      const key = kindKey(wait);
      const known = before.get(key);
      const { requests, next, leftMs } = wait;
      // Patience is for the one that is next, however often it is said.
      const givenAt = known?.next === next ? known.givenAt : undefined;
      after.set(key, { requests, next, queueBy: now + leftMs, givenAt });
    }
    peer.waiting = after;
    for (const [key, { givenAt, next }] of before) {
      if (givenAt !== undefined && after.get(key)?.next !== next) return true;
    }
    return false;
  }

  #drop(origin: string, peer: Peer): void {
    for (const num of [...peer.held.keys()]) this.#over(origin, peer, num);
    peer.waiting = new Map();
    peer.whole = undefined;
  }
}

const keyOf = (origin: string, num: number, { attempt }: Theirs, incarnation: string): EntryKey => ({
  origin,
  num,
  attempt,
  incarnation,
});
