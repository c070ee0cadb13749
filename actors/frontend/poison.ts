/**
 * Prompts that bring workers down are kept out for a while (decision 0014). A worker's death counts against a request only if that
 * attempt gave it no token: what was being answered when somebody killed the worker is a victim, not the cause.
 */
import { sequenceHashes } from '../../gpu/index.js';
import type { Prepared } from './ports.js';

/** Is a request to be given up? `suspects`: requests that its last death counts against, itself included. */
export const isPoison = (deaths: number, suspects: number) => deaths >= (suspects === 1 ? 2 : 3);

const keepOutMs = 10 * 60_000;
/** Prompts remembered; the one that was found first makes room. */
const limit = 1_024;

export class PoisonList {
  readonly #until = new Map<bigint, number>();

  get size(): number {
    return this.#until.size;
  }

  /** Those that are kept out now. Each is for as long, so the first that were found are the first to go. */
  count(now: number): number {
    for (const [prompt, until] of this.#until) {
      if (until > now) break;
      this.#until.delete(prompt);
    }
    return this.#until.size;
  }

  add(prompt: bigint, now: number): void {
    this.#until.delete(prompt);
    this.#until.set(prompt, now + keepOutMs);
    if (this.#until.size > limit) this.#until.delete(this.#until.keys().next().value as bigint);
  }

  has(prompt: bigint, now: number): boolean {
    const until = this.#until.get(prompt);
    if (until === undefined) return false;
    if (until > now) return true;
    this.#until.delete(prompt);
    return false;
  }
}

/** Of a prompt, whatever else its request says. */
export const identityOf = ({ prompt, cacheSalt }: Prepared) =>
  sequenceHashes(prompt, prompt.length, cacheSalt)[0] as bigint;
