/** The model that the engine benchmarks run: the default one, in the format that set-up chose for this machine. */
import { createLlamaEngine, type LlamaEngine, type LlamaEngineOptions, prepareWeights } from '../gpu/index.js';
import { resolveToolchain } from '../supervisors/index.js';

export interface BenchModel {
  readonly id: string;
  readonly path: string;
  readonly sourceHash: string;
  readonly format: string;
}

/** Converts the default model if set-up has not done so yet. */
export async function benchModel(): Promise<BenchModel> {
  const { defaultModel, cacheDir } = resolveToolchain();
  const { path, format, sourceHash } = await prepareWeights({ source: defaultModel.source, cacheDir });
  return { id: defaultModel.id, path, sourceHash, format };
}

export function openEngine(model: BenchModel, options: Partial<LlamaEngineOptions>): Promise<LlamaEngine> {
  const { id, path, sourceHash, format } = model;
  return createLlamaEngine({ model: id, path, sourceHash, format, owner: 'bench', ...options });
}
