export { blockChecksum, hashFromHex, hashToHex, sequenceHashes } from './block-hash.js';
export type {
  Engine,
  EngineChoice,
  EngineError,
  EngineErrorCode,
  EngineLimits,
  EngineLoad,
  EngineRequest,
  EngineSink,
  EngineStep,
  EngineToken,
  ModelCard,
  Verdict,
} from './engine.js';
export { type GpuErrorEntry, gpuErrors, type WeightsErrorCode } from './errors.js';
export {
  createKvIndex,
  type KvIndex,
  type KvIndexOptions,
  type KvIndexStats,
  type KvOverlap,
} from './kv-index.js';
export {
  type KvFetcher,
  type KvFetchResult,
  type KvFetchStatus,
  type KvPool,
  type KvPoolOptions,
  openKvFetcher,
  openKvPool,
} from './kv-pool.js';
export { createLlamaEngine, type LlamaEngine, type LlamaEngineOptions } from './llama-engine.js';
export { openVocabulary, type VocabularyOptions } from './llama-vocabulary.js';
export { mockAnswer } from './mock/content.js';
export type { MockEngineOptions } from './mock/options.js';
export { type EngineClock, systemClock } from './mock/timing.js';
export { createMockEngine } from './mock-engine.js';
export { openMockVocabulary } from './mock-vocabulary.js';
export { type Device, loadNative } from './native.js';
export { type TinyModelOptions, tinyModel, writeTinyModel } from './tiny-model.js';
export type { Vocabulary } from './vocabulary.js';
export type { WeightsCard } from './weights/card.js';
export { formatsFor, type WeightsFormat } from './weights/formats.js';
export { type PrepareOptions, WeightsError, type WeightsProgress } from './weights/options.js';
export { convertTo, type PreparedWeights, prepareWeights } from './weights.js';
