import { type RestartProgress, restartNode } from '../../supervisors/index.js';
import type { RestartOptions } from './main.js';
import { stateDirOf } from './settings.js';
import { UsageError } from './usage.js';

/** `dynact restart`: returns when everything that was to be replaced is back. */
export async function restart(instances: readonly string[], options: RestartOptions): Promise<void> {
  if (instances.length === 0 && !options.rolling)
    throw new UsageError('name processes, or use --rolling for all workers');
  if (instances.length > 0 && (options.rolling || options.all))
    throw new UsageError('--rolling and --all restart processes of a kind; name none beside them');
  const order = { instances, all: options.all === true, inPlace: options.inPlace === true };
  await restartNode(await stateDirOf(options), order, (progress) => {
    process.stdout.write(options.json ? `${JSON.stringify(progress)}\n` : `${describeStep(progress)}\n`);
  });
  if (!options.json) process.stdout.write('restarted\n');
}

function describeStep({ instance, step, incarnation, ms }: RestartProgress): string {
  if (step === 'draining') return `${instance}  draining ${incarnation}`;
  return `${instance}  ${step} after ${(ms / 1000).toFixed(1)} s  ${incarnation}`;
}
