/** What a routing decision costs a gateway: the router alone, over 64 workers with a prompt of 12,000 tokens, by stage. */
import {
  costConfig,
  createKernel,
  oneClass,
  type Ref,
  type RouterMessage,
  routerActor,
  seededDispatcher,
  virtualWorld,
} from '../../actors/index.js';
import { createKvIndex, sequenceHashes } from '../../gpu/index.js';
import { address, type InstanceInfo } from '../../transport/index.js';
import { type Figure, figure } from '../outcome.js';
import { median } from '../statistics.js';

const blockTokens = 64;
const pool = 32;
const promptTokens = 12_000;

/** Microseconds of CPU per call of a process that has run for a while: the median of slices, the first half thrown away. */
function micros(run: () => void): number {
  const slices = Array.from({ length: 40 }, () => {
    const start = process.cpuUsage();
    for (let i = 0; i < 100; i++) run();
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 100;
  });
  return median(slices.slice(20));
}

/** Half of 64 workers compute prompts, half decode; each of the first holds another length of this prompt, and all have work. */
export function overheadPart(): Figure[] {
  const tokens = Uint32Array.from({ length: promptTokens }, (_, i) => (i * 7_919) % 151_000);
  const hashes = sequenceHashes(tokens, blockTokens, '');
  const held = (worker: number) => hashes.subarray(0, Math.floor((hashes.length * (worker + 1)) / pool));

  const dispatcher = seededDispatcher();
  const kernel = createKernel({ world: virtualWorld({}), dispatcher });
  const router: Ref<RouterMessage> = kernel.spawn(
    routerActor({
      gateway: 'g',
      mode: 'kv',
      blockTokens,
      cost: costConfig(),
      caches: { maxBytes: 256 * 1024 * 1024, assumeMs: 10_000 },
      queue: oneClass(1_000),
      inhibition: { firstMs: 5_000, longestMs: 60_000 },
    }),
    address('gateway', 'g', 'router'),
  );
  const replyTo: Ref<{ readonly type: string }> = kernel.spawn(
    { name: 'asker', start: () => null, handle: (state: null) => state },
    address('gateway', 'g', 'frontend'),
  );
  const tell = (message: RouterMessage) => kernel.tell(router, message);
  const index = createKvIndex();
  for (let worker = 0; worker < pool; worker++) {
    for (const component of ['prefill', 'decode'] as const) {
      const incarnation = `${component}-${worker}-a`;
      const of = { node: 'n', host: 'h', pid: 1, draining: false, model: 'm', fingerprint: 'f', slots: 64 };
      tell({ type: 'InstanceUp', info: { component, instance: incarnation, incarnation, ...of } as InstanceInfo });
      const ops = [{ op: 'stored', tier: 'device', hashes: held(worker).slice() }] as const;
      tell({ type: 'KvChange', incarnation, rank: 0, ops });
      index.apply(incarnation, 0, ops);
      dispatcher.drain();
    }
  }
  let num = 0;
  const request = () => ({
    num: ++num,
    attempt: 1,
    id: String(num),
    model: 'm',
    choices: 1,
    exclude: new Set<string>(),
    queueBy: Number.POSITIVE_INFINITY,
    promptTokens,
    hashes,
  });
  const begin = () => tell({ type: 'Route', request: request(), replyTo: replyTo as never });
  for (let i = 0; i < 200; i++) begin();
  dispatcher.drain();

  const hashing = micros(() => void sequenceHashes(tokens, blockTokens, ''));
  const lookup = micros(() => void index.find(hashes));
  const dryRun = { ...request() };
  const selecting = micros(() => {
    tell({ type: 'DryRun', request: dryRun, replyTo: replyTo as never });
    dispatcher.drain();
  });
  const whole = micros(() => {
    begin();
    const of = { num, attempt: 1 };
    tell({ type: 'FirstToken', ...of, cachedTokens: 0 });
    tell({ type: 'PrefillDone', ...of });
    tell({ type: 'Release', ...of, end: 'served' });
    dispatcher.drain();
  });
  const stage = (key: string, name: string, value: number) => figure(key, name, 'µs', value);
  return [
    stage('hash_us', `hashes of ${promptTokens} tokens`, hashing),
    stage('lookup_us', 'lookup in the index', lookup),
    stage('select_us', 'selection among 32 + 32 workers', selecting - lookup),
    stage('account_us', 'booking, first token, release, record', whole - selecting),
    figure('overhead_us', 'all of it', 'µs', hashing + whole, { atMost: 300 }),
  ];
}
