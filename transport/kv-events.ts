/** Where a worker keeps a block, from the nearest to the farthest. */
export type KvTier = 'device' | 'host' | 'disk';
export const kvTiers = ['device', 'host', 'disk'] as const satisfies readonly KvTier[];

/**
 * One change of what a worker rank holds. Blocks are named by sequence hashes, which are chained: a name says all that a parent link
 * could, so the order of arrival of parents and children means nothing.
 */
export type KvOp =
  | { readonly op: 'stored' | 'removed'; readonly tier: KvTier; readonly hashes: BigUint64Array }
  | { readonly op: 'cleared' };
