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
export type { Vocabulary } from './vocabulary.js';
