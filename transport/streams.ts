/**
 * Table of streams and buckets (design 4.4): what each stores, for how long, how much, and what gives when it is full.
 * `ensureStreams` (nats/ensure.ts) creates them and compares what the broker really took.
 */
import { type StreamName, streamNames, subjects } from './subjects.js';

/** What is written down. With `off` and `metadata`, streams that carry prompts or tokens never touch the disk. */
export type Tape = 'off' | 'metadata' | 'full';

export interface StreamSettings {
  readonly tape: Tape;
  /** 1, or 3 on a cluster. */
  readonly replicas: 1 | 3;
  /** Scales every size limit; 1 = about 1.3 GB of disk at most. */
  readonly sizeFactor: number;
  /** REGISTRY: a lease not renewed for this long is gone. At least 1000. */
  readonly leaseMs: number;
}

export const defaultStreamSettings: StreamSettings = { tape: 'metadata', replicas: 1, sizeFactor: 1, leaseMs: 6_000 };

export interface StreamPlan {
  readonly name: string;
  readonly subjects: readonly string[];
  readonly retention: 'limits' | 'workqueue';
  readonly storage: 'file' | 'memory';
  /** `new`: a full stream refuses (typed, NET_STREAM_FULL). `old`: the oldest message goes. */
  readonly discard: 'new' | 'old';
  readonly maxAgeMs: number;
  readonly maxBytes: number;
  readonly duplicateWindowMs: number;
  readonly replicas: number;
}

export interface BucketPlan {
  readonly name: string;
  readonly storage: 'file' | 'memory';
  readonly ttlMs: number;
  /** How long the broker keeps the note that a key expired, so that watchers which were away see it. */
  readonly markerTtlMs: number;
  readonly maxBytes: number;
  readonly replicas: number;
}

/** A job that its taker says nothing of for this long is given to another: longer than an engine's longest step. */
export const jobAckWaitMs = 5_000;

const minute = 60_000;
const MiB = 1024 * 1024;

interface Row {
  readonly retention: 'limits' | 'workqueue';
  readonly discard: 'new' | 'old';
  readonly maxAgeMs: number;
  readonly mebibytes: number;
  /** Carries prompts or tokens: on disk only with `tape: full`. */
  readonly content: boolean;
}

const rows: Readonly<Record<StreamName, Row>> = {
  // Old mail goes: nearly all of it has been read, and a sender whose mail is pushed out unread has a deadline.
  MAIL: { retention: 'limits', discard: 'old', maxAgeMs: 15 * minute, mebibytes: 256, content: true },
  JOBS: { retention: 'workqueue', discard: 'new', maxAgeMs: 15 * minute, mebibytes: 64, content: true },
  TAPE: { retention: 'limits', discard: 'old', maxAgeMs: 60 * minute, mebibytes: 512, content: true },
  KV: { retention: 'limits', discard: 'old', maxAgeMs: 24 * 60 * minute, mebibytes: 128, content: false },
  JOURNAL: { retention: 'limits', discard: 'old', maxAgeMs: 24 * 60 * minute, mebibytes: 256, content: false },
  DEAD: { retention: 'limits', discard: 'old', maxAgeMs: 7 * 24 * 60 * minute, mebibytes: 64, content: true },
};

/** A retry carries its message id for as long as this; longer than the longest broker outage that is ridden out. */
const duplicateWindowMs = 2 * minute;
const memoryAgeMs = 15 * minute;
const leastBytes = 64 * 1024;

export function planStreams(namespace: string, settings: StreamSettings): StreamPlan[] {
  const s = subjects(namespace);
  return streamNames.map((name) => {
    const row = rows[name];
    const storage = row.content && settings.tape !== 'full' ? 'memory' : 'file';
    return {
      name: s.stream(name),
      subjects: s.stored(name),
      retention: row.retention,
      storage,
      discard: row.discard,
      maxAgeMs: storage === 'memory' ? Math.min(row.maxAgeMs, memoryAgeMs) : row.maxAgeMs,
      maxBytes: Math.max(leastBytes, Math.round(row.mebibytes * MiB * settings.sizeFactor)),
      duplicateWindowMs,
      replicas: settings.replicas,
    };
  });
}

export function planRegistry(namespace: string, settings: StreamSettings): BucketPlan {
  return {
    name: subjects(namespace).bucket,
    storage: 'file',
    ttlMs: settings.leaseMs,
    markerTtlMs: Math.max(60_000, settings.leaseMs),
    maxBytes: 16 * MiB,
    replicas: settings.replicas,
  };
}
