/** The same faults on NVIDIA Dynamo with its mock workers: recorded figures, or a run of it by a script that the user names. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { openStreams, signal } from '../../scenarios/index.js';
import { freePort } from '../processes.js';

export interface PeerRun {
  /** The cell it stands beside. */
  readonly cell: string;
  /** Dynamo's `--migration-limit` above 0. */
  readonly migration: boolean;
  /** What became of its streams, for people. */
  readonly line: string;
}

/** Dynamo 1.6.1, 2 + 2 mock workers, 32 streams of 200 tokens, on a machine of the kind that docs/benchmarks.md names. */
export const recordedPeer: readonly PeerRun[] = [
  { cell: 'decode.kill.decoding', migration: false, line: '16 of 32 end in an error' },
  { cell: 'decode.kill.decoding', migration: true, line: '32 complete, pause 104 ms' },
  { cell: 'decode.stop.decoding', migration: false, line: '16 of 32 hang for over 60 s' },
  { cell: 'decode.stop.decoding', migration: true, line: '16 of 32 hang for over 60 s' },
  { cell: 'prefill.kill.decoding', migration: false, line: '32 complete' },
  { cell: 'prefill.kill.decoding', migration: true, line: '32 complete' },
];

const faults: readonly [string, 'prefill' | 'decode', NodeJS.Signals][] = [
  ['decode.kill.decoding', 'decode', 'SIGKILL'],
  ['decode.stop.decoding', 'decode', 'SIGSTOP'],
  ['prefill.kill.decoding', 'prefill', 'SIGKILL'],
];
const tokens = 200;
/** A frozen worker stays frozen: what it hangs, it hangs for good. */
const hungMs = 60_000;

const run = promisify(execFile);

export async function runPeer(
  script: string,
  folder: string,
  streams: number,
  /** Names; Dynamo is run for those of them that it has figures for. */
  cells: readonly string[],
  progress: (text: string) => void,
): Promise<readonly PeerRun[]> {
  const runs: PeerRun[] = [];
  for (const migration of [false, true]) {
    for (const [cell, role, fault] of faults) {
      if (!cells.includes(cell)) continue;
      const line = await peerLine(script, folder, streams, migration, role, fault);
      progress(`Dynamo${migration ? ', migration on' : ''}: ${cell}  ${line}`);
      runs.push({ cell, migration, line });
    }
  }
  return runs;
}

async function peerLine(
  script: string,
  folder: string,
  count: number,
  migration: boolean,
  role: string,
  fault: NodeJS.Signals,
): Promise<string> {
  const port = await freePort();
  await run(script, ['up', folder, String(port), '1', '2', '2', migration ? '3' : '0'], { timeout: 120_000 });
  const pids = readFileSync(join(folder, 'pids'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(' '));
  const victim = Number(pids.find(([, name]) => name === role)?.[0]);
  try {
    const bodies = Array.from({ length: count }, (_, index) => ({
      model: 'mock',
      stream: true,
      max_tokens: tokens,
      messages: [{ role: 'user', content: `Story number ${index}: once upon a time there was a small actor who` }],
    }));
    const open = openStreams(port, '/v1/chat/completions', bodies);
    await open.reached((all) => all.every(({ at }) => at.length >= 20));
    const faultAt = performance.now();
    signal(victim, fault);
    const all = await open.ended(hungMs);
    const ended = (end: string) => all.filter((stream) => stream.end === end).length;
    const gaps = all.flatMap(({ at }) =>
      at.slice(1).map((when, index) => (when > faultAt ? when - (at[index] as number) : 0)),
    );
    const parts = [
      `${ended('complete')} complete`,
      ...(ended('failed') + ended('cut') > 0 ? [`${ended('failed') + ended('cut')} end in an error`] : []),
      ...(ended('hung') > 0 ? [`${ended('hung')} hang for over ${hungMs / 1000} s`] : []),
      `pause ${Math.round(Math.max(0, ...gaps))} ms`,
    ];
    return parts.join(', ');
  } finally {
    signal(victim, 'SIGCONT');
    await run(script, ['down', folder]).catch(() => {});
  }
}
