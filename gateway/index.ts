/** HTTP: the OpenAI-compatible API, streaming, tokenizer and chat template, metrics, traces. */
export { createDetokenizers } from './detokenizer.js';
export { type GatewayErrorCode, gatewayErrors } from './errors.js';
export { createGateway, type Gateway, type GatewayOptions, type Listen } from './gateway.js';
export type { GatewayLimits } from './limits.js';
export type { Labels, Sample } from './metrics.js';
export { createModelRegistry, type ModelRegistry, type ServedModel } from './models.js';
export { createPreprocessor } from './preprocessor.js';
export type { BusyThresholdValues } from './routes/busy-threshold.js';
export type { GatewayStatus } from './routes/operations.js';
export { startTracing, type Tracing } from './tracing.js';
