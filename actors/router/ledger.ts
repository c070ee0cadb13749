/**
 * What is running where, counted the moment it is dispatched: Dynamo's active sequences (its slot manager). A dispatch is one
 * entry, keyed by (request, attempt, incarnation) and freed exactly once; loads follow from the entries and never go below zero.
 */

/** Whose dispatch it is: `origin` is the gateway, so that the entries of other routers have a place here too. */
export interface EntryKey {
  readonly origin: string;
  readonly num: number;
  readonly attempt: number;
  readonly incarnation: string;
}

export interface Entry extends EntryKey {
  /** Slots it holds: one per choice on D, one on P. */
  readonly units: number;
  /** Prompt tokens that this worker computes, without what its cache is expected to hold; 0 where none are. */
  readonly prefillTokens: number;
  readonly promptTokens: number;
  /** Sequence hashes of the prompt's whole blocks: those of several entries are held once by a worker. */
  readonly hashes: BigUint64Array;
  /** Milliseconds of the router's clock. */
  readonly at: number;
}

export interface ActiveLoad {
  readonly units: number;
  readonly requests: number;
  /** Prompt tokens still to be computed. */
  readonly prefillTokens: number;
  /** Blocks held by running sequences; a prompt block that several share counts once. */
  readonly blocks: number;
}

interface Held {
  readonly entry: Entry;
  prefilling: boolean;
  /** Blocks beyond the hashed ones: the prompt's tail and what was generated. */
  tailBlocks: number;
  touchedAt: number;
}

interface WorkerLoad {
  units: number;
  requests: number;
  prefillTokens: number;
  tailBlocks: number;
  /** How many entries hold each prompt block. A chain's prefix is always held when its end is. */
  readonly shared: Map<number, number>;
}

const nothing: ActiveLoad = { units: 0, requests: 0, prefillTokens: 0, blocks: 0 };

export class Ledger {
  readonly #blockTokens: number;
  readonly #entries = new Map<string, Held>();
  readonly #workers = new Map<string, WorkerLoad>();

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** False: it is booked already, and nothing changes. */
  add(entry: Entry): boolean {
    const key = keyOf(entry);
    if (this.#entries.has(key)) return false;
    const held: Held = {
      entry,
      prefilling: entry.prefillTokens > 0,
      tailBlocks: this.#tailBlocks(entry, 0),
      touchedAt: entry.at,
    };
    this.#entries.set(key, held);
    let worker = this.#workers.get(entry.incarnation);
    if (worker === undefined) {
      worker = { units: 0, requests: 0, prefillTokens: 0, tailBlocks: 0, shared: new Map() };
      this.#workers.set(entry.incarnation, worker);
    }
    worker.units += entry.units;
    worker.requests++;
    worker.prefillTokens += entry.prefillTokens;
    worker.tailBlocks += held.tailBlocks;
    const words = wordsOf(entry.hashes);
    for (let at = 0; at < entry.hashes.length; at++) {
      const block = blockAt(words, at);
      worker.shared.set(block, (worker.shared.get(block) ?? 0) + 1);
    }
    return true;
  }

  /** Its first token is there: the prompt is no load any more. Repeats and unknown keys are harmless. */
  prefillDone(key: EntryKey): void {
    const held = this.#entries.get(keyOf(key));
    if (held?.prefilling !== true) return;
    held.prefilling = false;
    const worker = this.#workers.get(key.incarnation);
    if (worker) worker.prefillTokens -= held.entry.prefillTokens;
  }

  /** Output of all choices so far, in tokens: the entry grows with it, and is alive at `at`. */
  grown(key: EntryKey, outputTokens: number, at: number): void {
    const held = this.#entries.get(keyOf(key));
    const worker = this.#workers.get(key.incarnation);
    if (held === undefined || worker === undefined) return;
    held.touchedAt = at;
    const blocks = Math.max(held.tailBlocks, this.#tailBlocks(held.entry, outputTokens));
    worker.tailBlocks += blocks - held.tailBlocks;
    held.tailBlocks = blocks;
  }

  /** False: it is not booked, or was freed before. */
  free(key: EntryKey): boolean {
    const name = keyOf(key);
    const held = this.#entries.get(name);
    if (held === undefined) return false;
    this.#entries.delete(name);
    const worker = this.#workers.get(key.incarnation) as WorkerLoad;
    worker.units -= held.entry.units;
    worker.requests--;
    if (held.prefilling) worker.prefillTokens -= held.entry.prefillTokens;
    worker.tailBlocks -= held.tailBlocks;
    const { hashes } = held.entry;
    const words = wordsOf(hashes);
    for (let at = 0; at < hashes.length; at++) {
      const block = blockAt(words, at);
      const count = worker.shared.get(block) as number;
      if (count === 1) worker.shared.delete(block);
      else worker.shared.set(block, count - 1);
    }
    if (worker.requests === 0) this.#workers.delete(key.incarnation);
    return true;
  }

  /** Every entry that `which` picks, e.g. those of a gateway that is gone. Returns how many. */
  freeWhere(which: (entry: Entry) => boolean): number {
    const doomed = [...this.#entries.values()].filter(({ entry }) => which(entry));
    for (const { entry } of doomed) this.free(entry);
    return doomed.length;
  }

  /** Entries that nothing was heard of since `before`: a release of another router that was lost. Returns how many. */
  expire(before: number): number {
    const stale = [...this.#entries.values()].filter(({ touchedAt }) => touchedAt < before);
    for (const { entry } of stale) this.free(entry);
    return stale.length;
  }

  entriesOf(origin: string): Entry[] {
    return [...this.#entries.values()].filter(({ entry }) => entry.origin === origin).map(({ entry }) => entry);
  }

  load(incarnation: string): ActiveLoad {
    const worker = this.#workers.get(incarnation);
    if (worker === undefined) return nothing;
    const { units, requests, prefillTokens, tailBlocks, shared } = worker;
    return { units, requests, prefillTokens, blocks: tailBlocks + shared.size };
  }

  /** Blocks that a worker would hold in addition if it took this prompt: those that no sequence there shares, and the tail. */
  additionalBlocks(incarnation: string, hashes: BigUint64Array, promptTokens: number): number {
    const tail = Math.ceil(promptTokens / this.#blockTokens) - hashes.length;
    const shared = this.#workers.get(incarnation)?.shared;
    if (shared === undefined || shared.size === 0) return hashes.length + tail;
    // Hashes are chained, so what is held of a chain is a prefix of it.
    const words = wordsOf(hashes);
    let held = 0;
    let unheld = hashes.length;
    while (held < unheld) {
      const middle = (held + unheld) >> 1;
      if (shared.has(blockAt(words, middle))) held = middle + 1;
      else unheld = middle;
    }
    return hashes.length - held + tail;
  }

  #tailBlocks({ promptTokens, hashes }: Entry, outputTokens: number): number {
    return Math.max(0, Math.ceil((promptTokens + outputTokens) / this.#blockTokens) - hashes.length);
  }
}

const keyOf = ({ origin, num, attempt, incarnation }: EntryKey) => `${origin}/${num}/${attempt}/${incarnation}`;

/** Blocks are counted by 53 bits of their hash: as a number, which a map finds several times faster than a bigint. */
const wordsOf = (hashes: BigUint64Array) => new Uint32Array(hashes.buffer, hashes.byteOffset, 2 * hashes.length);
const blockAt = (words: Uint32Array, at: number) =>
  (words[2 * at] as number) + ((words[2 * at + 1] as number) & 0x1f_ffff) * 2 ** 32;
