/** Bounds of one gateway. Times in milliseconds, sizes in bytes. */
export interface GatewayLimits {
  /** Largest request body; refused with 413 before it is read when its length is declared. */
  readonly bodyBytes: number;
  /** Deepest nesting of a request body. */
  readonly bodyDepth: number;
  /** Most prompts of one completions request, and most choices over all of them. */
  readonly choices: number;
  readonly messages: number;
  /** Unsent bytes of one event stream; a reader that falls further behind is cut off. */
  readonly unsentBytes: number;
  /** A comment goes out on an event stream after at most this much silence; 0 = never. */
  readonly keepAliveMs: number;
  /** An idle connection is kept this long: longer than the 60 s of common load balancers. */
  readonly idleConnectionMs: number;
  readonly headersMs: number;
  /** For the whole request to arrive. */
  readonly uploadMs: number;
  readonly connections: number;
}

export const defaultLimits: GatewayLimits = {
  bodyBytes: 8 * 1024 * 1024,
  bodyDepth: 64,
  choices: 128,
  messages: 4096,
  unsentBytes: 1024 * 1024,
  keepAliveMs: 10_000,
  idleConnectionMs: 75_000,
  headersMs: 15_000,
  uploadMs: 120_000,
  connections: 16_384,
};
