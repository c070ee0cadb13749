/** What the figures were measured on. A figure without it means nothing. */
import { execFileSync } from 'node:child_process';
import { availableParallelism, cpus, loadavg, totalmem } from 'node:os';
import { packageRoot, resolveToolchain } from '../supervisors/index.js';

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  /** Load average of the last minute before the run. Above `calmLoad` wall-clock figures say little. */
  readonly load: number;
  readonly node: string;
  /** '' when it cannot be told. */
  readonly nats: string;
  /** Short hash, with `+` when the working tree differs; '' outside a clone. */
  readonly commit: string;
}

/** A machine busier than this share of its cores is not calm. */
export const calmLoad = 0.75;

export function machine(): Machine {
  return {
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    load: Math.round((loadavg()[0] as number) * 100) / 100,
    node: process.version,
    nats: quietly(() => /\d+\.\d+\.\d+/.exec(output(resolveToolchain().natsServer, ['--version']))?.[0] ?? ''),
    commit: quietly(
      () => git('rev-parse', '--short', 'HEAD') + (git('status', '--porcelain', '-uno') === '' ? '' : '+'),
    ),
  };
}

export function machineLine(m: Machine): string {
  const nats = m.nats === '' ? '' : `, nats-server ${m.nats}`;
  const commit = m.commit === '' ? '' : `, commit ${m.commit}`;
  return `${m.cpu}, ${m.cores} cores, ${m.memoryGiB} GiB, load ${m.load}, node ${m.node}${nats}${commit}`;
}

const output = (command: string, args: string[]) =>
  execFileSync(command, args, { cwd: packageRoot(), encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
const git = (...args: string[]) => output('git', args);

function quietly(ask: () => string): string {
  try {
    return ask();
  } catch {
    return '';
  }
}
