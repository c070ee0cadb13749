/**
 * Least rights per role, derived from the subject table. A role may publish what its processes send, hear what is meant
 * for them, and read its own part of a stream: the broker ties a consumer to the filter in its creation subject.
 */
import type { Component } from '../address.js';
import { type StreamName, type Subjects, streamNames } from '../subjects.js';
import { inboxPrefix } from './dial.js';

export const roles = ['node', 'gateway', 'prefill', 'decode', 'observer'] as const;
export type Role = (typeof roles)[number];

export interface Permissions {
  readonly publish: readonly string[];
  readonly subscribe: readonly string[];
}

type Workload = Exclude<Component, 'node'>;

interface Rights {
  /** Subject classes, as [kind, component]. */
  readonly publish: readonly (readonly [kind: string, component?: string])[];
  readonly hear: readonly (readonly [kind: string, component?: string])[];
  /** Streams, and what part of them. */
  readonly read: readonly (readonly [stream: StreamName, kind: string, component?: string])[];
  /** The work queue: its jobs, or only how many wait. */
  readonly jobs?: 'take' | 'put';
}

const rights: Readonly<Record<Workload, Rights>> = {
  gateway: {
    publish: [
      ['mail', 'prefill'],
      ['mail', 'decode'],
      ['query', 'prefill'],
      ['query', 'decode'],
      ['query', 'gateway'],
      ['query', 'node'],
      ['ack'],
      ['journal'],
      ['replica', 'gateway'],
    ],
    hear: [['out'], ['load'], ['down'], ['query', 'gateway'], ['kv'], ['replica']],
    read: [
      ['MAIL', 'mail', 'gateway'],
      ['KV', 'kv'],
      ['JOURNAL', 'journal'],
    ],
  },
  prefill: {
    publish: [['mail', 'decode'], ['out'], ['ack', 'decode'], ['kv']],
    hear: [['ack', 'prefill'], ['down'], ['query', 'prefill']],
    read: [['MAIL', 'mail', 'prefill']],
    jobs: 'take',
  },
  decode: {
    publish: [['mail', 'prefill'], ['out'], ['ack', 'prefill'], ['kv'], ['job']],
    hear: [['ack', 'decode'], ['down'], ['query', 'decode']],
    read: [['MAIL', 'mail', 'decode']],
    jobs: 'put',
  },
};

const create = (stream: string, filter: string) => `$JS.API.CONSUMER.CREATE.${stream}.*.${filter}`;
const info = (stream: string) => `$JS.API.STREAM.INFO.${stream}`;

export function permissionsOf(role: Role, s: Subjects): Permissions {
  const inbox = `${inboxPrefix(role)}.>`;
  const everything = `dyn.${s.namespace}.>`;
  const registry = [info(s.bucketStream), create(s.bucketStream, s.key(''))];
  const basic = ['$JS.API.INFO', '$JS.FC.>', ...registry];
  if (role === 'node') {
    return { publish: [everything, '$JS.API.>', '$JS.FC.>', s.key('')], subscribe: [everything, inbox] };
  }
  if (role === 'observer') {
    // Every stream but the work queue, which a second reader would rob.
    const streams = streamNames.filter((name) => name !== 'JOBS');
    const reads = streams.flatMap((name) => [
      info(s.stream(name)),
      ...s.stored(name).map((subject) => create(s.stream(name), subject)),
    ]);
    return { publish: [...basic, ...reads, s.all('query', 'node')], subscribe: [everything, inbox] };
  }
  const own = rights[role];
  // Nobody but the node says who is dead.
  const mine = ['load', 'tape'].map((kind) => s.all(kind, role));
  return {
    publish: [
      ...basic,
      ...mine,
      s.dead(role),
      s.key(`instance.${role}.`),
      s.key('card.'),
      ...own.publish.map(([kind, component]) => s.all(kind, component)),
      ...new Set([info(s.stream('MAIL')), ...own.read.map(([stream]) => info(s.stream(stream)))]),
      ...own.read.flatMap(([stream, kind, component]) => reads(s, stream, kind, component)),
      // Whoever serves the route that changes settings.
      ...(role === 'gateway' ? [s.key('setting.')] : []),
      ...(own.jobs === undefined ? [] : onJobs[own.jobs](s)),
    ],
    subscribe: [...own.hear.map(([kind, component]) => s.all(kind, component)), inbox],
  };
}

/** Takers of one kind of job share a consumer, so whoever may take may end any job. */
const onJobs: Readonly<Record<'take' | 'put', (s: Subjects) => readonly string[]>> = {
  take: (s) => {
    const jobs = s.stream('JOBS');
    return [create(jobs, s.all('job')), `$JS.API.CONSUMER.MSG.NEXT.${jobs}.*`, `$JS.ACK.${jobs}.>`];
  },
  put: (s) => [`$JS.API.CONSUMER.INFO.${s.stream('JOBS')}.*`],
};

/** A consumer may be filtered on the whole part or on anything inside it. */
function reads(s: Subjects, stream: StreamName, kind: string, component?: string): string[] {
  return [create(s.stream(stream), s.all(kind, component))];
}
