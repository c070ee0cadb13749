/**
 * Identity of KV blocks: Dynamo's XXH3-64, seed 1337, chained over parents, with the cache salt and the name of a LoRA folded into the
 * seed of the local hashes (design 6.4). Tenants are kept apart by salt; models by their index. A router that indexes Dynamo's workers and ours sees one and the same number for one prefix.
 */
import { nativeAddon } from './addon.js';

interface HashAddon {
  sequenceHashes(
    tokens: Uint32Array,
    blockTokens: number,
    salt: string,
    partial: boolean,
    lora: string,
  ): BigUint64Array;
  blockChecksum(bytes: Uint8Array, hash: bigint): bigint;
}

/**
 * Hash of every prefix of `tokens` that ends at a block boundary, in one native call. '' is no salt. With `partial` a short last
 * block has an entry too: hand-offs name it, prefix caches and events do not. Throws RangeError when `blockTokens` is not an
 * integer of at least 1.
 */
export function sequenceHashes(
  tokens: Uint32Array,
  blockTokens: number,
  salt: string,
  options?: { readonly partial?: boolean; readonly lora?: string },
): BigUint64Array {
  if (!Number.isInteger(blockTokens) || blockTokens < 1 || blockTokens > 0xffff_ffff) {
    throw new RangeError(`blockTokens ${blockTokens} is not an integer of at least 1`);
  }
  if (!(tokens instanceof Uint32Array)) throw new TypeError('tokens must be a Uint32Array');
  return nativeAddon<HashAddon>().sequenceHashes(
    tokens,
    blockTokens,
    String(salt),
    options?.partial === true,
    options?.lora ?? '',
  );
}

/** XXH3-64 of a block's bytes, seeded with the block's sequence hash. */
export function blockChecksum(bytes: Uint8Array, hash: bigint): bigint {
  return nativeAddon<HashAddon>().blockChecksum(bytes, BigInt.asUintN(64, hash));
}

/** As messages carry hashes: 16 lower-case hex digits. */
export function hashToHex(hash: bigint): string {
  return hash.toString(16).padStart(16, '0');
}

/** Throws RangeError unless `text` is 16 lower-case hex digits. */
export function hashFromHex(text: string): bigint {
  if (!/^[0-9a-f]{16}$/.test(text)) throw new RangeError('a hash is 16 lower-case hex digits');
  return BigInt(`0x${text}`);
}
