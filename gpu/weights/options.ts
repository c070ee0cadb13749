/** What conversions are told, and how they fail. */
import { gpuErrors, type WeightsErrorCode } from '../errors.js';
import type { WeightsFormat } from './formats.js';

export interface WeightsProgress {
  readonly phase: 'hash' | 'measure' | 'convert';
  /** 0 … 1 over all phases. */
  readonly fraction: number;
}

export interface PrepareOptions {
  /** Canonical GGUF file. */
  readonly source: string;
  /** Converted weights go into `weights/` below it. */
  readonly cacheDir: string;
  /** Tries this one only. @default `formatsFor()`, in order, until one keeps the quality */
  readonly format?: WeightsFormat;
  readonly onProgress?: (progress: WeightsProgress) => void;
  /** Stops the conversion; what was begun is removed. */
  readonly signal?: AbortSignal;
  /** More than one collapses on shared cores (measured: 582 ms a step against 34). @default 1 */
  readonly threads?: number;
  /** For the conversion, or for another process to finish one. @default 600000 */
  readonly deadlineMs?: number;
}

/** Matched by `code`; every code is in `gpuErrors`. */
export class WeightsError extends Error {
  constructor(
    readonly code: WeightsErrorCode,
    detail: string,
    cause?: unknown,
  ) {
    const entry = gpuErrors.find((known) => known.code === code);
    super(`${entry?.message ?? code}: ${detail}`, cause === undefined ? undefined : { cause });
    this.name = 'WeightsError';
  }
}
