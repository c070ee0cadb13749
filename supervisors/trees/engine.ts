/** Which engine a worker runs, from its configuration. The addon is loaded only by what needs it. */
import { availableParallelism } from 'node:os';
import type { Engine } from '../../gpu/index.js';
import type { WorkerBoot } from '../boot.js';

export async function openEngine(boot: WorkerBoot): Promise<Engine> {
  const { config, role, incarnation, model } = boot;
  const { engine, mock } = config;
  const slots = role === 'prefill' ? engine.prefillSlots : engine.slots;
  const gpu = await import('../../gpu/index.js');
  if (engine.kind === 'mock') {
    return gpu.createMockEngine({
      owner: incarnation,
      model: model.id,
      speedup: mock.speedup,
      ...(mock.stepMs > 0 ? { stepMs: mock.stepMs } : {}),
      slots,
      kvBlocks: mock.blocks,
      transfer: 'native',
    });
  }
  const { contextTokens } = config.model;
  return gpu.createLlamaEngine({
    owner: incarnation,
    model: model.id,
    path: model.path,
    sourceHash: model.sourceHash,
    format: model.format,
    slots,
    sequenceTokens: contextTokens,
    threads: engine.threads || threadsPerWorker(config.topology),
    prefillChunk: engine.prefillChunkTokens,
    cacheBytes: engine.kvCacheBytes,
    // Room for every prompt that the router may have out at a time: P's slots and one more. D lends of what it has cached.
    exportBlocks: (slots + 1) * Math.ceil(contextTokens / 64),
    device: engine.gpu,
  });
}

/** The node's cores shared out: two engines on one core cost both more than half. */
function threadsPerWorker({ prefill, decode }: WorkerBoot['config']['topology']): number {
  return Math.max(1, Math.floor(availableParallelism() / Math.max(1, prefill + decode)));
}
