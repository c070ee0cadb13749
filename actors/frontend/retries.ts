/**
 * The gateway's retry budget: a token bucket that all requests share, beside the attempts of each. A fleet that dies is asked again
 * at the bucket's rate; a request for which there is no token waits its turn and loses nothing but time.
 */

export interface RetryBudgetConfig {
  /** Attempts that may start at once: as many as one dead worker may leave behind. */
  readonly burst: number;
  /** Attempts a second beyond that. */
  readonly perSecond: number;
}

export class RetryBudget {
  readonly #config: RetryBudgetConfig;
  /** Below 0: tokens that are promised to those who wait. */
  #tokens: number;
  #at = 0;

  constructor(config: RetryBudgetConfig) {
    this.#config = config;
    this.#tokens = config.burst;
  }

  /** Takes a token. Milliseconds until it may be used; 0 is now. */
  take(now: number): number {
    const { burst, perSecond } = this.#config;
    this.#tokens = Math.min(burst, this.#tokens + (Math.max(0, now - this.#at) / 1_000) * perSecond) - 1;
    this.#at = now;
    return this.#tokens >= 0 ? 0 : Math.ceil((-this.#tokens / perSecond) * 1_000);
  }
}
