import { stopNode } from '../../supervisors/index.js';
import type { StopOptions } from './main.js';
import { stateDirOf } from './settings.js';

/** Longer than any drain that can be configured sensibly; a node that takes more has its own trouble to report. */
const patienceMs = 15 * 60_000;

/** `dynact stop`: returns when the node has ended. */
export async function stop(options: StopOptions): Promise<void> {
  await stopNode(await stateDirOf(options), options.now === true, patienceMs);
  process.stdout.write('stopped\n');
}
