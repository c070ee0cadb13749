/**
 * Who holds which part of which chain of hashes. A chain's hash names everything before it, so what two chains have in common is a prefix:
 * a radix tree whose edges are stretches of chains. Holding, letting go and asking cost a few comparisons per edge, however long the chain
 * is and however many hold it.
 */

/** 53 bits of each hash: as a number, which a map finds several times faster than a bigint. */
const wordsOf = (hashes: BigUint64Array) => new Uint32Array(hashes.buffer, hashes.byteOffset, 2 * hashes.length);
const highBits = 0x1f_ffff;
const hashAt = (words: Uint32Array, at: number) =>
  (words[2 * at] as number) + ((words[2 * at + 1] as number) & highBits) * 2 ** 32;
const same = (a: Uint32Array, b: Uint32Array, at: number) =>
  a[2 * at] === b[2 * at] && ((a[2 * at + 1] as number) & highBits) === ((b[2 * at + 1] as number) & highBits);

/** A stretch of a chain: hashes `from` to `to` (not included) of `words`. Others than its holders know it as an end of theirs. */
export interface Stretch<Holder> {
  readonly words: Uint32Array;
  from: number;
  readonly to: number;
  parent: Stretch<Holder> | undefined;
  /** By their first hash. */
  readonly children: Map<number, Stretch<Holder>>;
  /** How many chains each of them has through here. */
  readonly holders: Map<Holder, number>;
  /** Chains that end here. */
  ends: number;
}

export class Chains<Holder> {
  readonly #roots = new Map<number, Stretch<Holder>>();

  /** One more chain for `holder`; it may have the same one several times. Undefined: the chain is empty. */
  hold(hashes: BigUint64Array, holder: Holder): { readonly end: Stretch<Holder>; readonly fresh: number } | undefined {
    if (hashes.length === 0) return undefined;
    const words = wordsOf(hashes);
    let parent: Stretch<Holder> | undefined;
    let fresh = 0;
    for (let at = 0; ; ) {
      let stretch = this.#childOf(parent, words, at);
      if (stretch === undefined) {
        stretch = { words, from: at, to: hashes.length, parent, children: new Map(), holders: new Map(), ends: 0 };
        this.#link(stretch);
      } else {
        const common = commonEnd(stretch, words, hashes.length);
        if (common < stretch.to) stretch = this.#split(stretch, common);
      }
      const times = stretch.holders.get(holder) ?? 0;
      if (times === 0) fresh += stretch.to - stretch.from;
      stretch.holders.set(holder, times + 1);
      at = stretch.to;
      parent = stretch;
      if (at < hashes.length) continue;
      stretch.ends++;
      return { end: stretch, fresh };
    }
  }

  /** Takes back one `hold`, by the end that it gave. Returns how many hashes the holder has no more. */
  release(end: Stretch<Holder>, holder: Holder): number {
    let lost = 0;
    end.ends--;
    for (let stretch: Stretch<Holder> | undefined = end; stretch !== undefined; ) {
      const { parent }: Stretch<Holder> = stretch;
      const times = stretch.holders.get(holder) as number;
      if (times > 1) stretch.holders.set(holder, times - 1);
      else {
        stretch.holders.delete(holder);
        lost += stretch.to - stretch.from;
      }
      if (stretch.holders.size === 0) this.#childrenOf(parent).delete(hashAt(stretch.words, stretch.from));
      else if (stretch.ends === 0 && stretch.children.size === 1) this.#join(stretch);
      stretch = parent;
    }
    return lost;
  }

  /** Tells who holds how many of the leading hashes: the last of several numbers for a holder counts. */
  find(hashes: BigUint64Array, tell: (holder: Holder, count: number) => void): void {
    if (hashes.length === 0) return;
    const words = wordsOf(hashes);
    for (let at = 0, parent: Stretch<Holder> | undefined; at < hashes.length; ) {
      const stretch = this.#childOf(parent, words, at);
      if (stretch === undefined) return;
      at = commonEnd(stretch, words, hashes.length);
      for (const holder of stretch.holders.keys()) tell(holder, at);
      if (at < stretch.to) return;
      parent = stretch;
    }
  }

  /** Stretches that exist: at most two for each chain held. */
  get size(): number {
    const count = (stretches: ReadonlyMap<number, Stretch<Holder>>): number => {
      let sum = stretches.size;
      for (const { children } of stretches.values()) sum += count(children);
      return sum;
    };
    return count(this.#roots);
  }

  #childrenOf(parent: Stretch<Holder> | undefined): Map<number, Stretch<Holder>> {
    return parent === undefined ? this.#roots : parent.children;
  }

  #childOf(parent: Stretch<Holder> | undefined, words: Uint32Array, at: number): Stretch<Holder> | undefined {
    return this.#childrenOf(parent).get(hashAt(words, at));
  }

  #link(stretch: Stretch<Holder>): void {
    this.#childrenOf(stretch.parent).set(hashAt(stretch.words, stretch.from), stretch);
  }

  /** The part before `at` becomes a stretch of its own, and is returned; the rest stays what it is, for its ends are known. */
  #split(lower: Stretch<Holder>, at: number): Stretch<Holder> {
    const { words, from, parent, holders } = lower;
    const upper = { words, from, to: at, parent, children: new Map(), holders: new Map(holders), ends: 0 };
    this.#link(upper);
    lower.from = at;
    lower.parent = upper;
    this.#link(lower);
    return upper;
  }

  /** A stretch in which nothing ends or parts becomes the beginning of its only child: all its chains go on there. */
  #join(upper: Stretch<Holder>): void {
    for (const lower of upper.children.values()) {
      lower.from = upper.from;
      lower.parent = upper.parent;
      this.#link(lower);
    }
  }
}

/** Where a chain that begins as `stretch` does parts from it. */
function commonEnd<Holder>({ words: theirs, from, to }: Stretch<Holder>, words: Uint32Array, length: number): number {
  let common = from + 1;
  let different = Math.min(to, length);
  if (different > common && same(theirs, words, different - 1)) return different;
  while (common < different) {
    const middle = (common + different) >> 1;
    if (same(theirs, words, middle)) common = middle + 1;
    else different = middle;
  }
  return common;
}
