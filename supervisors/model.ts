/** From a model's name to the file that the workers load. */
import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { ModelFile } from './boot.js';
import type { ResolvedConfig } from './config-schema.js';
import { SupervisorError } from './errors.js';
import { cacheFolder, resolveToolchain } from './toolchain.js';

/** The canonical weights a configuration names; `sha256` is known for the default model only. */
export interface ModelSource {
  readonly id: string;
  readonly path: string;
  readonly sha256: string | undefined;
}

/** Undefined for the mock engine. Rejects with SUP_MODEL or SUP_TOOLCHAIN. */
export async function modelSource(config: ResolvedConfig): Promise<ModelSource | undefined> {
  const { id } = config.model;
  if (config.engine.kind === 'mock') return undefined;
  if (id.includes('/')) {
    const facts = await stat(id).catch((error: NodeJS.ErrnoException) => {
      throw new SupervisorError('SUP_MODEL', [id, error.code === 'ENOENT' ? 'no such file' : error.message], error);
    });
    if (!facts.isFile()) throw new SupervisorError('SUP_MODEL', [id, 'is not a file']);
    return { id: basename(id).replace(/\.gguf$/i, ''), path: id, sha256: undefined };
  }
  const { defaultModel } = resolveToolchain();
  if (id !== defaultModel.id) {
    throw new SupervisorError('SUP_MODEL', [id, `unknown; give the path of a GGUF file, or use ${defaultModel.id}`]);
  }
  return { id, path: defaultModel.source, sha256: defaultModel.sha256 };
}

/**
 * The weights to load, in the fastest format that keeps their quality; the first time on a machine that takes a conversion.
 * Rejects with SUP_MODEL or SUP_TOOLCHAIN.
 */
export async function resolveModel(config: ResolvedConfig, progress: (text: string) => void): Promise<ModelFile> {
  const source = await modelSource(config);
  if (source === undefined) return { id: config.model.id, path: '', sourceHash: 'mock', format: 'mock' };
  const { prepareWeights } = await import('../gpu/index.js');
  let phase = '';
  try {
    const prepared = await prepareWeights({
      source: source.path,
      cacheDir: cacheFolder(),
      onProgress: (now) => {
        if (now.phase !== phase) progress(`preparing ${source.id}: ${now.phase}`);
        phase = now.phase;
      },
    });
    return { id: source.id, path: prepared.path, sourceHash: prepared.sourceHash, format: prepared.format };
  } catch (error) {
    throw new SupervisorError('SUP_MODEL', [source.path, error instanceof Error ? error.message : error], error);
  }
}
