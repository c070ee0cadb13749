/** A prefill worker of its own process: answers `Asked` with `Sent`, one after the other, until its channel closes. */
import type { LlamaEngine } from '../../gpu/index.js';
import type { Sampling } from '../../transport/index.js';
import { openRig, type Result } from './llama-rig.js';

export interface Asked {
  readonly prompt: Uint32Array;
  readonly sampling: Sampling;
  readonly haveBlocks: number;
}
export type Ready = Pick<LlamaEngine, 'card' | 'pool'>;
export type Sent = Result & { readonly key: number };

const [path = '', threads = '1'] = process.argv.slice(2);
const { engine, prefill } = await openRig(path, {
  slots: 1,
  sequenceTokens: 512,
  exportBlocks: 64,
  owner: `sender-${process.pid}`,
  threads: Number(threads),
});
process.on('message', (message: Asked | { readonly release: number }) => {
  if ('release' in message) engine.release(message.release);
  else void prefill(message.prompt, message.sampling, message.haveBlocks).then((sent) => process.send?.(sent));
});
process.on('disconnect', () => void engine.stop());
process.send?.({ card: engine.card, pool: engine.pool } satisfies Ready);
