/**
 * What a router tells the others of its own dispatches: frames of what has changed since the last one, or a snapshot of all that stands for
 * those that missed something. Best effort and bounded: what would grow too large becomes a snapshot, and a snapshot too large leaves
 * hashes out, so that those requests count as sharing no blocks. Pure: time comes in.
 */
import type { Body } from '../../transport/index.js';

export type ReplicaFrame = Body<'Replica'>;

/** A request as it was placed. */
export interface Placement {
  readonly num: number;
  readonly attempt: number;
  readonly decode: string;
  readonly prefill: string | undefined;
  /** Slots on D. */
  readonly units: number;
  readonly promptTokens: number;
  /** Prompt tokens that no cache was expected to have. */
  readonly toCompute: number;
  readonly hashes: BigUint64Array;
}

export interface Waiter {
  readonly num: number;
  readonly model: string;
  /** Begun before: its client sees a stream stand. */
  readonly again: boolean;
  /** By this router's clock: the nearest deadline is next. */
  readonly queueBy: number;
}

/** How far it is: its prompt is computed, its first token is there, D has its KV. */
const stages = { placed: 0, began: 1, handed: 2 } as const;
type Stage = keyof typeof stages;

interface Held {
  readonly placement: Placement;
  stage: Stage;
}

export const voiceLimits = {
  /** Requests whose state has changed since the last frame; one more, and a snapshot goes out instead. */
  changes: 8_192,
  /** Requests in one frame, and bytes of their hashes: a frame stays well below what the broker takes in one piece. */
  framePlaced: 512,
  frameHashBytes: 256 * 1024,
  /** Leading blocks of a prompt that others learn of. */
  hashes: 256,
  /** Of a whole snapshot. */
  snapshotHashBytes: 4 * 1024 * 1024,
  /** Others that ask together get one. */
  snapshotEveryMs: 100,
  /** Kinds of waiting requests, failures and questions in a frame. */
  kinds: 64,
  failures: 64,
  wants: 256,
} as const;

export class ReplicaVoice {
  readonly #held = new Map<number, Held>();
  readonly #changed = new Map<number, Stage | 'over'>();
  /** By model and kind, in the order in which they came to wait. */
  readonly #waiting = new Map<string, Map<number, Waiter>>();
  readonly #failed: { readonly key: string; readonly reason: string; readonly placedAt: number }[] = [];
  readonly #want = new Set<string>();
  #seq = 0;
  #snapshot = false;
  #snapshotAt = Number.NEGATIVE_INFINITY;
  #dirty = false;
  /** Nobody listens: what happens is remembered, and said when somebody asks. */
  listeners = 0;

  /** Frames sent so far. */
  get seq(): number {
    return this.#seq;
  }

  get held(): number {
    return this.#held.size;
  }

  placed(placement: Placement): void {
    this.#held.set(placement.num, { placement, stage: 'placed' });
    this.#change(placement.num, 'placed');
  }

  began(num: number): void {
    this.#advance(num, 'began');
  }

  /** D has its KV; nothing to say where D computed it. */
  handed(num: number): void {
    if (this.#held.get(num)?.placement.prefill !== undefined) this.#advance(num, 'handed');
  }

  over(num: number): void {
    if (this.#held.delete(num)) this.#change(num, 'over');
  }

  waits(waiter: Waiter): void {
    this.waitsNot(waiter.num);
    const key = `${waiter.again ? 1 : 0}${waiter.model}`;
    let kind = this.#waiting.get(key);
    if (kind === undefined) {
      kind = new Map();
      this.#waiting.set(key, kind);
    }
    kind.set(waiter.num, waiter);
    this.#dirty = true;
  }

  waitsNot(num: number): void {
    for (const [key, kind] of this.#waiting) {
      if (!kind.delete(num)) continue;
      if (kind.size === 0) this.#waiting.delete(key);
      this.#dirty = true;
    }
  }

  /** A worker or pair was put out of routing for what was placed at `placedAt`. */
  failed(key: string, reason: string, placedAt: number): void {
    if (this.listeners === 0 || this.#failed.length >= voiceLimits.failures) return;
    this.#failed.push({ key, reason, placedAt });
    this.#dirty = true;
  }

  /** Another router's snapshot is needed. */
  ask(origin: string): void {
    if (this.#want.size < voiceLimits.wants) this.#want.add(origin);
    this.#dirty = true;
  }

  /** Somebody needs all of it. */
  snapshot(): void {
    this.#snapshot = true;
    this.#dirty = true;
  }

  /** Requests that wait here. */
  get waiting(): number {
    let sum = 0;
    for (const kind of this.#waiting.values()) sum += kind.size;
    return sum;
  }

  /** Requests of which something is to be said. */
  get changes(): number {
    return this.#changed.size;
  }

  /** A snapshot is asked for. */
  get owes(): boolean {
    return this.#snapshot;
  }

  /** There is something to say. */
  get dirty(): boolean {
    return this.#dirty;
  }

  /** Milliseconds until a snapshot that is asked for may go; 0: now, or none is. */
  snapshotIn(now: number): number {
    return this.#snapshot ? Math.max(0, this.#snapshotAt + voiceLimits.snapshotEveryMs - now) : 0;
  }

  /** What is to be said now, at least one frame. */
  frames(now: number): ReplicaFrame[] {
    const whole = this.#snapshot && this.snapshotIn(now) === 0;
    const frames = whole ? this.#whole() : this.#changes();
    if (whole) {
      this.#snapshotAt = now;
      this.#snapshot = false;
    }
    this.#changed.clear();
    const last = frames.at(-1) as Draft;
    last.held = this.#held.size;
    for (const { key, reason, placedAt } of this.#failed) {
      last.failed.push({ key, reason, placedMs: Math.max(0, Math.floor(now - placedAt)) });
    }
    last.want.push(...this.#want);
    last.waiting.push(...this.#kinds(now));
    this.#failed.length = 0;
    this.#want.clear();
    // One that has to wait for its time is said then.
    this.#dirty = this.#snapshot;
    for (const frame of frames) frame.seq = ++this.#seq;
    return frames;
  }

  #advance(num: number, stage: Stage): void {
    const held = this.#held.get(num);
    if (held === undefined || stages[held.stage] >= stages[stage]) return;
    held.stage = stage;
    // Peers that have not heard of it yet hear of it as it is now.
    if (this.#changed.get(num) !== 'placed') this.#change(num, stage);
  }

  #change(num: number, what: Stage | 'over'): void {
    if (this.listeners === 0) return;
    this.#dirty = true;
    this.#changed.set(num, what);
    if (this.#changed.size > voiceLimits.changes) {
      this.#changed.clear();
      this.#snapshot = true;
    }
  }

  #changes(): Draft[] {
    const frames = new Frames();
    for (const [num, what] of this.#changed) {
      const held = this.#held.get(num);
      if (what !== 'placed') frames.number(num, what);
      else if (held !== undefined) frames.place(held, voiceLimits.hashes);
    }
    return frames.done();
  }

  #whole(): Draft[] {
    const frames = new Frames();
    let left: number = voiceLimits.snapshotHashBytes;
    for (const held of this.#held.values()) {
      const hashes = Math.min(voiceLimits.hashes, Math.floor(left / 8));
      left -= frames.place(held, hashes);
    }
    const parts = frames.done();
    for (const [at, frame] of parts.entries()) frame.part = [at, parts.length];
    return parts;
  }

  #kinds(now: number): ReplicaFrame['waiting'] {
    const kinds: ReplicaFrame['waiting'] = [];
    for (const kind of this.#waiting.values()) {
      if (kinds.length === voiceLimits.kinds) break;
      const [first] = kind.values();
      if (first === undefined) continue;
      const { num: next, model, again, queueBy } = first;
      kinds.push({ model, again, requests: kind.size, next, leftMs: Math.max(0, Math.floor(queueBy - now)) });
    }
    return kinds;
  }
}

type Draft = { -readonly [Key in keyof ReplicaFrame]: ReplicaFrame[Key] };

/** Fills frames one after the other. */
class Frames {
  readonly #frames: Draft[] = [];
  readonly #index = new Map<string, number>();
  #hashBytes = 0;
  #frame = this.#next();

  /** Returns how many bytes its hashes take. */
  place({ placement, stage }: Held, mostHashes: number): number {
    const { num, attempt, decode, prefill, units, promptTokens, toCompute, hashes } = placement;
    const known = hashes.subarray(0, mostHashes);
    if (
      this.#frame.placed.length === voiceLimits.framePlaced ||
      this.#hashBytes + known.byteLength > voiceLimits.frameHashBytes
    ) {
      this.#frame = this.#next();
    }
    this.#hashBytes += known.byteLength;
    this.#frame.placed.push({
      num,
      attempt,
      decode: this.#at(decode),
      ...(prefill === undefined ? {} : { prefill: this.#at(prefill) }),
      stage: stages[stage],
      units,
      promptTokens,
      toCompute,
      hashes: new Uint8Array(known.buffer, known.byteOffset, known.byteLength),
    });
    return known.byteLength;
  }

  number(num: number, what: 'began' | 'handed' | 'over'): void {
    this.#frame[what].push(num);
  }

  done(): Draft[] {
    return this.#frames;
  }

  #at(worker: string): number {
    const known = this.#index.get(worker);
    if (known !== undefined) return known;
    const at = this.#frame.workers.push(worker) - 1;
    this.#index.set(worker, at);
    return at;
  }

  #next(): Draft {
    this.#index.clear();
    this.#hashBytes = 0;
    const frame: Draft = {
      seq: 0,
      workers: [],
      placed: [],
      began: [],
      handed: [],
      over: [],
      waiting: [],
      failed: [],
      want: [],
    };
    this.#frames.push(frame);
    return frame;
  }
}
