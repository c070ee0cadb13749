/**
 * The fault matrix: kills, freezes and breaks every part of a node of 2 prefill and 2 decode workers and 2 gateways while it answers
 * 32 streams, and prints what became of them.
 */
import type { Bench } from './bench.js';
import { type Cell, cells, cellsNamed, quickCells, realCells } from './faults/cells.js';
import { type PeerRun, recordedPeer, runPeer } from './faults/peer.js';
import { openRecord } from './faults/record.js';
import { type CellResult, runCell, type Setting, undisturbed } from './faults/run-cell.js';
import { type Figure, figure, type Outcome } from './outcome.js';

export const faultsBench: Bench = {
  summary: 'what clients see when any part of a node is killed, frozen or broken, in every phase of their requests',
  help: `  --cells A,B         only these, e.g. decode.kill.decoding, or all that begin with decode.kill or decode
  --quick             only one of each kind
  --real              the default model instead of the mock engine (${realCells.length} cells)
  --list              says which cells there are, those of --real marked, and runs none
  --streams N         concurrent streams (32; --real 8: as many as one worker has slots)
  --tokens N          tokens of each (200; --real 100)
  --record FILE       appends what comes of each cell, and runs no cell that is in it: a matrix in parts
  --minutes N         begins no cell after so many
  --log FILE          appends the logs of the nodes
  --dynamo SCRIPT     the peer live, in those of the cells that it has: a script that takes \`up DIR PORT SPEEDUP PREFILL DECODE MIGRATION\`, prints "PID role" lines and
                      returns when model mock is served, and takes \`down DIR\`; without it the peer's figures are recorded ones
  --dynamo-dir DIR    its folder`,
  options: {
    cells: { type: 'string' },
    quick: { type: 'boolean' },
    real: { type: 'boolean' },
    streams: { type: 'string' },
    tokens: { type: 'string' },
    list: { type: 'boolean' },
    record: { type: 'string' },
    minutes: { type: 'string' },
    log: { type: 'string' },
    dynamo: { type: 'string' },
    'dynamo-dir': { type: 'string' },
  },
  async run(options, progress): Promise<Outcome> {
    if (options.list === true)
      return { figures: [], notes: cells.map(({ name }) => `${name}${realCells.includes(name) ? ' *' : ''}`) };
    const real = options.real === true;
    const setting: Setting = {
      engine: real ? 'real' : 'mock',
      streams: Number(options.streams ?? (real ? 8 : 32)),
      tokens: Number(options.tokens ?? (real ? 100 : 200)),
      log: typeof options.log === 'string' ? options.log : undefined,
    };
    const record = openRecord(typeof options.record === 'string' ? options.record : undefined, setting);
    const all = chosenCells(options, real);
    const chosen = all.filter(({ name }) => record.results.every(({ cell }) => cell !== name));
    const until = performance.now() + Number(options.minutes ?? Number.POSITIVE_INFINITY) * 60_000;
    const phases = chosen.map(({ phase }) => phase).filter((phase) => !record.baselines.has(phase));
    const fresh = await undisturbed(phases, setting);
    for (const [phase, baseline] of fresh) record.add({ phase, baseline });
    const baselines = new Map([...record.baselines, ...fresh]);
    const results: CellResult[] = record.results.filter(({ cell }) => all.some(({ name }) => name === cell));
    const broken: string[] = [];
    for (const cell of chosen) {
      if (performance.now() > until) break;
      try {
        const result = await runCell(cell, setting, baselines);
        results.push(result);
        record.add({ result });
        progress(rowOf(result).join('  '));
      } catch (error) {
        broken.push(`${cell.name} could not be run: ${error instanceof Error ? error.message : String(error)}`);
        progress(broken.at(-1) as string);
      }
    }
    const peers =
      typeof options.dynamo === 'string' && typeof options['dynamo-dir'] === 'string'
        ? await runPeer(
            options.dynamo,
            options['dynamo-dir'],
            setting.streams,
            all.map(({ name }) => name),
            progress,
          )
        : recordedPeer;
    return {
      figures: figures(all, results, broken, real),
      notes: [
        ...matrix(results, peers),
        ...broken,
        peers === recordedPeer ? recordedNote : 'peer: Dynamo, run here and now',
      ],
      details: {
        cells: results,
        peers,
        undisturbed: [...baselines].map(([phase, { pauseMs, totalMs }]) => ({ phase, pauseMs, totalMs })),
      },
    };
  },
};

const recordedNote =
  'peer: Dynamo 1.6.1 with mock workers, 2 + 2, 32 streams of 200 tokens; recorded earlier on a machine of this kind, not in this run';

function chosenCells(options: Readonly<Record<string, unknown>>, real: boolean): readonly Cell[] {
  if (typeof options.cells === 'string') return cellsNamed(options.cells.split(','));
  if (real) return cellsNamed(realCells);
  return options.quick === true ? cellsNamed(quickCells) : cells;
}

/** A cell holds if every stream that can be answered is, with the right text, and nothing is left behind. */
function holds({ streams, excused, identical, hung, leaked }: CellResult): boolean {
  return identical === streams - excused && hung === 0 && leaked.length === 0;
}

function figures(
  chosen: readonly Cell[],
  results: readonly CellResult[],
  broken: readonly string[],
  real: boolean,
): Figure[] {
  const sum = (of: (result: CellResult) => number) => results.reduce((total, result) => total + of(result), 0);
  const longest = (key: string, name: string, limit: number) => {
    const pauses = results.filter(({ cell }) => chosen.some((each) => each.name === cell && groupOf(each) === key));
    if (pauses.length === 0) return [];
    const target = real ? undefined : { atMost: limit };
    return [figure(`${key}_pause_ms`, name, 'ms', Math.max(...pauses.map(({ pauseMs }) => pauseMs)), target)];
  };
  return [
    figure('cells', 'cells run', '', results.length, { atLeast: chosen.length }),
    figure(
      'cells_held',
      'cells in which all complete, identical, nothing hung or left',
      '',
      results.filter(holds).length,
      { atLeast: chosen.length },
    ),
    figure(
      'lost',
      'streams that failed or were not identical',
      '',
      sum(({ streams, excused, identical }) => streams - excused - identical),
      { atMost: 0 },
    ),
    figure(
      'hung',
      'streams that hung',
      '',
      sum(({ hung }) => hung),
      { atMost: 0 },
    ),
    figure('left', 'things left behind', '', sum(({ leaked }) => leaked.length) + broken.length, { atMost: 0 }),
    ...longest('worker_exit', 'longest pause, a worker ends', 250),
    ...longest('worker_silent', 'longest pause, a worker freezes or its engine is wedged', 3000),
    ...longest('nats_exit', 'longest pause, NATS ends', 3000),
    ...longest('nats_frozen', 'longest pause, NATS freezes', 8000),
  ];
}

function groupOf({ pauseMs, target }: Cell): string {
  if (pauseMs === undefined) return '';
  if (target.instance === 'nats') return pauseMs > 3000 ? 'nats_frozen' : 'nats_exit';
  return pauseMs > 250 ? 'worker_silent' : 'worker_exit';
}

const head = [
  'cell',
  'complete',
  'identical',
  'failed',
  'hung',
  'pause ms',
  'back ms',
  'left behind',
  'Dynamo',
  'Dynamo, migration on',
];

function rowOf(result: CellResult, peers: readonly PeerRun[] = []): string[] {
  const of = result.streams - result.excused;
  const peer = (migration: boolean) =>
    peers.find((run) => run.cell === result.cell && run.migration === migration)?.line ?? '';
  const why = Object.entries(result.reasons).map(([reason, count]) => `${count} × ${reason}`);
  return [
    result.cell,
    `${result.complete} of ${of}`,
    String(result.identical),
    String(result.failed),
    String(result.hung),
    String(result.pauseMs),
    String(result.recoveredMs),
    [...result.leaked, ...why].join(', ') || '–',
    peer(false),
    peer(true),
  ];
}

/** One line per cell. */
function matrix(results: readonly CellResult[], peers: readonly PeerRun[]): string[] {
  const rows = [head, ...results.map((result) => rowOf(result, peers))];
  const widths = head.map((_, column) => Math.max(...rows.map((row) => (row[column] as string).length)));
  return rows.map((row) =>
    row
      .map((text, column) => text.padEnd(widths[column] as number))
      .join('  ')
      .trimEnd(),
  );
}
