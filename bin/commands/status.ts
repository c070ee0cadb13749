import { setTimeout as sleep } from 'node:timers/promises';
import { type NodeStatus, nodeStatus, type ProcessStatus } from '../../supervisors/index.js';
import type { StatusOptions } from './main.js';
import { stateDirOf } from './settings.js';

const everyMs = 1000;

/** `dynact status`. */
export async function status(options: StatusOptions): Promise<void> {
  const stateDir = await stateDirOf(options);
  const colour = process.stdout.isTTY === true && !process.env.NO_COLOR;
  for (;;) {
    const now = await nodeStatus(stateDir);
    const text = options.json ? `${JSON.stringify(now)}\n` : drawTree(now, colour);
    process.stdout.write(options.watch && colour && !options.json ? `\u001b[H\u001b[2J${text}` : text);
    if (!options.watch) return;
    await sleep(everyMs);
  }
}

const tints: Readonly<Record<ProcessStatus['state'], string>> = {
  up: '\u001b[32m',
  starting: '\u001b[33m',
  restarting: '\u001b[31m',
  draining: '\u001b[33m',
  down: '\u001b[31m',
};

/** The supervision tree as people read it: one process a line. */
export function drawTree(status: NodeStatus, colour: boolean): string {
  const [node, ...children] = status.processes;
  const paint = (state: ProcessStatus['state'], text: string) => (colour ? `${tints[state]}${text}\u001b[0m` : text);
  const rows = children.map((process) => cells(process));
  const widths = rows.reduce<number[]>(
    (sizes, row) => row.map((cell, column) => Math.max(cell.length, sizes[column] ?? 0)),
    [],
  );
  const lines = rows.map((row, index) => {
    const [name, state, ...rest] = row.map((cell, column) => cell.padEnd(widths[column] as number));
    const branch = index === rows.length - 1 ? '└─' : '├─';
    const process = children[index] as ProcessStatus;
    return `${branch} ${name}  ${paint(process.state, state as string)}  ${rest.join('  ')}`.trimEnd();
  });
  const where = status.url === '' ? '' : `  ${status.url}`;
  const dead = status.deadLetters ? `  dead letters ${status.deadLetters}` : '';
  const memory = node?.rssBytes ? `  ${mebibytes(node.rssBytes)}` : '';
  const head = `${status.node}  ${node ? paint(node.state, node.state) : ''}  pid ${node?.pid}${memory}${where}  model ${status.model} (${status.engine})  up ${duration(status.uptimeMs)}${dead}`;
  return `${[head, ...lines].join('\n')}\n`;
}

function cells(process: ProcessStatus): string[] {
  const facts = Object.entries(process.facts).map(([name, value]) => `${name} ${value}`);
  return [
    process.instance,
    `${process.state} ${duration(process.stateMs)}${crashes(process)}`,
    process.pid === null ? 'no process' : `pid ${process.pid}`,
    process.rssBytes === 0 ? '' : mebibytes(process.rssBytes),
    process.incarnation,
    process.restarts === 0 ? '' : `restarts ${process.restarts}`,
    facts.join(', '),
    process.lastReason === null ? '' : `last: ${process.lastReason.split('\n')[0]}`,
  ];
}

const mebibytes = (bytes: number): string => `${Math.round(bytes / 1024 / 1024)} MiB`;

function crashes({ failures, retryMs }: ProcessStatus): string {
  const next = retryMs === null ? '' : `, next try in ${duration(retryMs)}`;
  return failures > 1 ? ` (crash loop: ${failures} failures${next})` : next;
}

function duration(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
