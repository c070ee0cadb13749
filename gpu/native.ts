import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { nativeAddon, packageRoot } from './addon.js';

/** The engine's half of the native addon. Lists cross packed; `llama-engine.ts` is the only caller. */
export interface NativeStep {
  readonly steps: number;
  /** key, choice, position, token, finish, index into `logprobs` or 2^32 − 1. */
  readonly tokens: Uint32Array;
  /** own, then (token, logprob) pairs. */
  readonly logprobs: readonly Float64Array[];
  /** key, done, total, cached. */
  readonly progress: Uint32Array;
  /** key, cached. */
  readonly prefilled: Uint32Array;
  readonly committed: Uint32Array;
  /** key, (index, tokens, offset, bytes)…, (checksum, hash)… */
  readonly exported: readonly (readonly [number, Float64Array, BigUint64Array])[];
  readonly failed: readonly (readonly [number, string, string])[];
  /** [stored (1) or removed (0), count]… and the hashes of all; absent: the prefix cache did not change. */
  readonly cache?: readonly [Uint32Array, BigUint64Array];
  readonly died?: readonly [number, string, string];
}

/** Undefined = accepted; else code and message. */
export type NativeAnswer = readonly [string, string] | undefined;

export interface NativeEngine {
  readonly facts: {
    readonly fingerprint: string;
    readonly kvType: string;
    readonly layout: string;
    readonly tokenBytes: number;
    readonly slots: number;
    readonly sequenceTokens: number;
    readonly vocabTokens: number;
    readonly contextTokens: number;
    readonly poolFd?: number;
    readonly poolBytes?: number;
  };
  start(onStep: (step: NativeStep) => void): void;
  generate(request: object): NativeAnswer;
  prefill(
    request: object,
    haveBlocks: number,
    leaseMs: number,
    prefix?: object,
    numbers?: Float64Array,
    hashes?: BigUint64Array,
  ): NativeAnswer;
  lend(key: number): NativeAnswer;
  reserve(request: object): number | readonly [string, string];
  pull(key: number, pool: object, numbers: Float64Array, hashes: BigUint64Array): NativeAnswer;
  commit(
    key: number,
    handoff: object,
    numbers: Float64Array,
    hashes: BigUint64Array,
    first: readonly object[],
  ): NativeAnswer;
  cancel(key: number): void;
  release(key: number): void;
  load(): {
    busySlots: number;
    waiting: number;
    usedKvBlocks: number;
    cachedBlocks: number;
    exportedBlocks: number;
    steps: number;
    progress: number;
  };
  /** CPU time of the engine thread in ms: in all, inside llama_decode. */
  cpu(): readonly [number, number];
  stop(): Promise<void>;
}

export interface NativeVocabulary {
  readonly facts: {
    readonly size: number;
    readonly chatTemplate: string;
    readonly contextTokens: string;
    readonly bosToken: string;
    readonly eosToken: string;
    readonly addsBos: boolean;
    readonly endTokens: Uint32Array;
    readonly name: string;
  };
  tokenize(utf8: Uint8Array, special: boolean, addBos: boolean): Uint32Array;
  piece(token: number): Uint8Array;
  grammarFault(gbnf: string): string;
}

export interface NativeLibrary {
  /** Opens libllama and its back ends once per process; throws when a file, a symbol, the version or a struct size differs. */
  loadLibrary(folder: string): {
    readonly version: string;
    readonly devices: readonly { readonly name: string; readonly description: string; readonly gpu: boolean }[];
  };
  readonly Vocabulary: new (path: string) => NativeVocabulary;
  createEngine(options: object): Promise<NativeEngine>;
  /** `ftype` is one of llama.h's llama_ftype. Every tensor gets one type. */
  quantize(from: string, to: string, ftype: number, threads: number): Promise<void>;
}

/** Where libllama comes from. `cuda` needs the CUDA build of the package and a GPU. */
export type Device = 'cpu' | 'cuda';

/** Folder of the shared libraries in the npm platform package. */
function libraryFolder(device: Device): string {
  const platform = `linux-${process.arch}`;
  const name = device === 'cuda' ? `${platform}-cuda` : platform;
  return join(packageRoot(), 'node_modules/@node-llama-cpp', name, 'bins', name);
}

let current: { readonly device: Device; readonly native: NativeLibrary; readonly version: string } | undefined;

/**
 * The addon with libllama loaded. A process uses one device for its whole life. Throws Error: the addon or the package is not there,
 * the library is another version than the addon was built for, or `cuda` was asked for and there is no GPU.
 */
export function loadNative(device: Device = 'cpu'): { readonly native: NativeLibrary; readonly version: string } {
  if (current !== undefined) {
    if (current.device !== device) throw new Error(`libllama is already loaded for ${current.device}`);
    return current;
  }
  const folder = libraryFolder(device);
  if (!existsSync(folder)) {
    const hint =
      device === 'cuda' ? `no GPU: install @node-llama-cpp/linux-${process.arch}-cuda` : 'run "npm run setup"';
    throw new Error(`libllama is not installed (${folder}): ${hint}`);
  }
  const native = nativeAddon<NativeLibrary>();
  const { version, devices } = native.loadLibrary(folder);
  if (device === 'cuda' && !devices.some(({ gpu }) => gpu))
    throw new Error('no GPU: the CUDA back end found no device');
  current = { device, native, version };
  return current;
}
