/**
 * What is running where, counted the moment it is dispatched: Dynamo's active sequences (its slot manager). A dispatch is one
 * entry, keyed by (request, attempt, incarnation) and freed exactly once; loads follow from the entries and never go below zero.
 */
import { Chains, type Stretch } from './chains.js';

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
  readonly account: Account;
  /** Where its prompt ends among those of the worker; undefined: it has no whole block. */
  readonly end: Stretch<Account> | undefined;
  prefilling: boolean;
  /** Blocks beyond the hashed ones: the prompt's tail and what was generated. */
  tailBlocks: number;
}

/** All that one worker was given. */
interface Account {
  readonly load: { -readonly [Key in keyof ActiveLoad]: ActiveLoad[Key] };
  /** Leading blocks of the prompt that was looked up last, when `look` is of that time. */
  held: number;
  look: number;
}

const nothing: ActiveLoad = { units: 0, requests: 0, prefillTokens: 0, blocks: 0 };

export class Ledger {
  readonly #blockTokens: number;
  readonly #entries = new Map<string, Held>();
  readonly #accounts = new Map<string, Account>();
  readonly #chains = new Chains<Account>();
  /** The prompt that was looked up last; undefined once anything has changed. */
  #looked: BigUint64Array | undefined;
  #looks = 0;

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
    let account = this.#accounts.get(entry.incarnation);
    if (account === undefined) {
      account = { load: { units: 0, requests: 0, prefillTokens: 0, blocks: 0 }, held: 0, look: 0 };
      this.#accounts.set(entry.incarnation, account);
    }
    this.#looked = undefined;
    const { end, fresh } = this.#chains.hold(entry.hashes, account) ?? { end: undefined, fresh: 0 };
    const tailBlocks = this.#tailBlocks(entry, 0);
    const prefilling = entry.prefillTokens > 0;
    this.#entries.set(key, { entry, account, end, prefilling, tailBlocks });
    const { load } = account;
    load.units += entry.units;
    load.requests++;
    load.prefillTokens += entry.prefillTokens;
    load.blocks += tailBlocks + fresh;
    return true;
  }

  /** Its first token is there: the prompt is no load any more. Repeats and unknown keys are harmless. */
  prefillDone(key: EntryKey): void {
    const held = this.#entries.get(keyOf(key));
    if (held?.prefilling !== true) return;
    held.prefilling = false;
    held.account.load.prefillTokens -= held.entry.prefillTokens;
  }

  /** Output of all choices so far, in tokens: the entry grows with it. */
  grown(key: EntryKey, outputTokens: number): void {
    const held = this.#entries.get(keyOf(key));
    if (held === undefined) return;
    const blocks = Math.max(held.tailBlocks, this.#tailBlocks(held.entry, outputTokens));
    held.account.load.blocks += blocks - held.tailBlocks;
    held.tailBlocks = blocks;
  }

  /** False: it is not booked, or was freed before. */
  free(key: EntryKey): boolean {
    const name = keyOf(key);
    const held = this.#entries.get(name);
    if (held === undefined) return false;
    this.#entries.delete(name);
    this.#looked = undefined;
    const { entry, account, end, prefilling, tailBlocks } = held;
    const { load } = account;
    load.units -= entry.units;
    load.requests--;
    if (prefilling) load.prefillTokens -= entry.prefillTokens;
    load.blocks -= tailBlocks + (end === undefined ? 0 : this.#chains.release(end, account));
    if (load.requests === 0) this.#accounts.delete(entry.incarnation);
    return true;
  }

  /** Every entry that `which` picks, e.g. those of a gateway that is gone. Returns how many. */
  freeWhere(which: (entry: Entry) => boolean): number {
    const doomed = [...this.#entries.values()].filter(({ entry }) => which(entry));
    for (const { entry } of doomed) this.free(entry);
    return doomed.length;
  }

  entriesOf(origin: string): Entry[] {
    return [...this.#entries.values()].filter(({ entry }) => entry.origin === origin).map(({ entry }) => entry);
  }

  /** As it is now; to be read, not kept. */
  load(incarnation: string): ActiveLoad {
    return this.#accounts.get(incarnation)?.load ?? nothing;
  }

  /**
   * Blocks that a worker would hold in addition if it took this prompt: those that no sequence there shares, and the tail. One prompt is
   * looked up once, for however many workers.
   */
  additionalBlocks(incarnation: string, hashes: BigUint64Array, promptTokens: number): number {
    if (this.#looked !== hashes) {
      this.#looked = hashes;
      const look = ++this.#looks;
      this.#chains.find(hashes, (account, count) => {
        account.held = count;
        account.look = look;
      });
    }
    const account = this.#accounts.get(incarnation);
    const held = account?.look === this.#looks ? account.held : 0;
    return Math.ceil(promptTokens / this.#blockTokens) - held;
  }

  #tailBlocks({ promptTokens, hashes }: Entry, outputTokens: number): number {
    return Math.max(0, Math.ceil((promptTokens + outputTokens) / this.#blockTokens) - hashes.length);
  }
}

const keyOf = ({ origin, num, attempt, incarnation }: EntryKey) => `${origin}/${num}/${attempt}/${incarnation}`;
