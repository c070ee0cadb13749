// The default model's weights in the format that runs fastest on this processor: gpu/weights.ts converts and judges, this step
// only does it before the first start rather than during it.
import { existsSync } from 'node:fs';
import { cpus } from 'node:os';
import { pathToFileURL } from 'node:url';
import { stampOf } from './cache.mjs';
import { inClone, signature } from './clone.mjs';
import { SetupError } from './report.mjs';

export const weights = {
  name: 'weights for this processor',
  after: ['addon', 'typescript', 'model'],
  needs: [],
  upToDate({ cache }) {
    const known = cache.get('weights');
    return known?.key === key(cache) && existsSync(known.path) && known.stamp === stampOf(known.path);
  },
  async run({ cache }, step) {
    const gpu = await import(pathToFileURL(inClone('dist/gpu/index.js')).href);
    const { path, format, card } = await gpu
      .prepareWeights({
        source: cache.get('model').path,
        cacheDir: cache.folder,
        onProgress: ({ phase, fraction }) => step.share(fraction, phase),
      })
      .catch((error) => {
        throw new SetupError(error.message);
      });
    cache.set('weights', { key: key(cache), path, format, stamp: stampOf(path) });
    const { source, result } = card.perplexity;
    if (!card.used) return `the source as it is: ${card.reason}`;
    return result ? `${format}, perplexity ${result.toFixed(2)} (source ${source.toFixed(2)})` : format;
  },
};

/** All that the choice of the weights depends on. */
function key(cache) {
  const files = ['gpu/weights.ts', `node_modules/@node-llama-cpp/linux-${process.arch}/package.json`].map((file) =>
    inClone(file),
  );
  return signature(
    files.filter((file) => existsSync(file)),
    [cache.get('model')?.sha256, cpus()[0]?.model],
  );
}
