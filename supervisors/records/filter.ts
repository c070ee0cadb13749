/** Which records are meant, as the flags of `dynact tape` say it. */
import { bodies, type StreamName, streamNames } from '../../transport/index.js';
import { nearest } from '../nearest.js';
import { requestIdIn } from './evidence.js';
import type { Read } from './record.js';
import { readable } from './source.js';

export interface RecordFilter {
  /** `gateway`, `prefill`, `decode`, `node`. */
  readonly component?: string;
  /** Part of an address: `decode-0`, `decode-0-m3k9x2.worker`, `frontend`. */
  readonly actor?: string;
  readonly req?: string;
  readonly type?: string;
}

const components = ['gateway', 'prefill', 'decode', 'node'] as const;
/** Kinds of record that are no messages. */
const otherTypes = [
  'step',
  'routes',
  'turn',
  'journal',
  'dead',
  'kv',
  'probe',
  'tape',
  'import',
  'imported',
  'Chunk',
  'unreadable',
];
const recordTypes: readonly string[] = [...Object.keys(bodies), ...otherTypes];

/** What is wrong with a filter, and the nearest that would be right; undefined: nothing. */
export function complaintAbout({ component, type }: RecordFilter): string | undefined {
  if (component !== undefined && !components.some((known) => known === component))
    return `--component ${component}: one of ${components.join(', ')}`;
  const known = recordTypes.find((each) => each.toLowerCase() === type?.toLowerCase());
  // Records of a newer dynact may have types that are not known here: they are unreadable.
  if (type !== undefined && known === undefined)
    return `--type ${type}: no such type; did you mean ${nearest(type, recordTypes)}? All: ${recordTypes.join(', ')}`;
  return undefined;
}

export function passes({ component, actor, req, type }: RecordFilter): (read: Read) => boolean {
  const id = req === undefined ? undefined : (requestIdIn(req) ?? req);
  const kind = type?.toLowerCase();
  const isOf = (address: string) => address === component || address.startsWith(`${component}.`);
  const names = (address: string) => actor !== undefined && `.${address}.`.includes(`${actor}`);
  return (read) => {
    if (kind !== undefined && read.type.toLowerCase() !== kind) return false;
    if (id !== undefined && !read.requests.includes(id)) return false;
    const ends = [read.from, read.to, read.record.subject.split('.').slice(3).join('.')];
    if (component !== undefined && !ends.some(isOf)) return false;
    return actor === undefined || ends.some(names);
  };
}

/** `90s`, `5m`, `2h`, `1d` ago, or a date; undefined: neither. Milliseconds since 1970. */
export function sinceOf(text: string, now: number): number | undefined {
  const units: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
  const ago = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text);
  if (ago) return now - Number(ago[1]) * (units[ago[2] as string] as number);
  const at = /^\d{4}-/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(at) ? undefined : at;
}

/** `mail,tape`; undefined: one of them is none. */
export function streamsOf(text: string): readonly StreamName[] | undefined {
  const names = text.split(',').map((name) => name.trim().toUpperCase());
  return names.every((name) => streamNames.some((known) => known === name) && name !== 'JOBS')
    ? readable.filter((name) => names.includes(name))
    : undefined;
}
