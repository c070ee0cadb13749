/**
 * Where logs go. Every process writes one JSON object a line to its stderr (process-log.ts); the node passes them on, as
 * they are or rendered for a person.
 */
import type { Log } from '../actors/index.js';
import type { ResolvedConfig } from './config-schema.js';

type Level = ResolvedConfig['log']['level'];

export interface LogSink {
  /** A line that a child wrote: a pino record, or anything else. */
  line(instance: string, text: string): void;
  /** The node's own log. */
  readonly log: Log;
}

const levels: Readonly<Record<string, number>> = { debug: 20, info: 30, warn: 40, error: 50, silent: 99 };
const names: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO ',
  40: 'WARN ',
  50: 'ERROR',
  60: 'FATAL',
};
const colours: Readonly<Record<number, string>> = { 40: '\u001b[33m', 50: '\u001b[31m', 60: '\u001b[31m' };

/** Where a node's log lines go. `text` is for terminals; JSON keeps each child's line and adds nothing but `instance`. */
export function logSink(
  options: { level: Level; format: 'json' | 'text'; colour: boolean },
  write: (text: string) => void,
): LogSink {
  const least = levels[options.level] as number;
  const put = (record: Readonly<Record<string, unknown>>) => {
    if (Number(record.level) < least) return;
    write(options.format === 'json' ? `${JSON.stringify(record)}\n` : render(record, options.colour));
  };
  const own = (name: string) => (message: string, fields?: Record<string, unknown>) =>
    put({ level: levels[name], time: Date.now(), instance: 'node', ...fields, msg: message });
  return {
    line: (instance, text) => {
      // Native libraries write plain lines; they say so little of their weight that `info` has to do.
      const { instance: about, ...record } = parseRecord(text) ?? { level: levels.info, time: Date.now(), msg: text };
      // A line about another instance says so in a field of that name.
      put({ ...record, instance, ...(about === undefined || about === instance ? {} : { about }) });
    },
    log: { debug: own('debug'), info: own('info'), warn: own('warn'), error: own('error') },
  };
}

function parseRecord(text: string): Readonly<Record<string, unknown>> | undefined {
  if (!text.startsWith('{"level":')) return undefined;
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    return undefined;
  }
}

function render(record: Readonly<Record<string, unknown>>, colour: boolean): string {
  const { level, time, instance, actor, msg, ...fields } = record;
  const clock = new Date(Number(time)).toISOString().slice(11, 23);
  const who = actor === undefined || actor === '' ? String(instance) : `${instance}/${actor}`;
  const rest = Object.entries(fields).map(
    ([name, value]) => ` ${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
  );
  const line = `${clock} ${names[Number(level)] ?? level} ${who}: ${msg}${rest.join('')}`;
  const tint = colour ? colours[Number(level)] : undefined;
  return tint === undefined ? `${line}\n` : `${tint}${line}\u001b[0m\n`;
}
