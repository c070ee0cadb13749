/**
 * The subject grammar. Nothing else in the project writes a subject: builders here, matchers here. Everything of one
 * namespace lives under `dyn.<namespace>.`, so that two nodes on one broker do not meet.
 *
 *   mail.<component>.<incarnation>.<actor>    commands into one mailbox              stream MAIL
 *   job.<pool>                                order-free work                        stream JOBS
 *   out.<gateway incarnation>                 frames to a gateway                    stream TAPE
 *   ack.<component>.<incarnation>             frames to a worker                     stream TAPE
 *   load.<component>.<incarnation>            load reports                           stream TAPE
 *   down.<component>.<incarnation>            obituaries                             stream TAPE
 *   replica.gateway.<incarnation>             what a router tells the others         not stored
 *   tape.<component>.<incarnation>            what is recorded for people            stream TAPE
 *   tape.<component>.<incarnation>.turns      what its actors were told and did      stream TAPE
 *   kv.<incarnation>.<rank>                   KV events                              stream KV
 *   journal.<gateway incarnation>             accepted and ended requests            stream JOURNAL
 *   dead.<component>                          what could not be handled              stream DEAD
 *   query.<component>.<incarnation>.<actor>   questions                              not stored
 */
import type { Address, Component } from './address.js';

/** Streams by their short names; on the broker they are `DYN_<namespace>_<name>`. */
export const streamNames = ['MAIL', 'JOBS', 'TAPE', 'KV', 'JOURNAL', 'DEAD'] as const;
export type StreamName = (typeof streamNames)[number];

export type FrameKind = 'out' | 'ack' | 'load' | 'down' | 'replica';

const namespaceGrammar = /^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$/;

function isNamespace(text: string): boolean {
  return namespaceGrammar.test(text);
}

export interface Subjects {
  readonly namespace: string;
  mail(to: Address): string;
  /** Every mailbox of one incarnation. */
  mailOf(component: Component, incarnation: string): string;
  query(to: Address): string;
  job(pool: string): string;
  /** Frames to one gateway; `*` for all. */
  out(gateway: string): string;
  ack(component: Component, incarnation: string): string;
  /** Without arguments: of everybody. */
  load(component?: Component, incarnation?: string): string;
  down(component?: Component, incarnation?: string): string;
  replica(component?: Component, incarnation?: string): string;
  tape(component: Component, incarnation: string): string;
  /** Of one process. */
  turns(component: Component, incarnation: string): string;
  /** Without a rank: of all. */
  kv(incarnation: string, rank?: number): string;
  journal(gateway: string): string;
  dead(component: Component): string;
  /** What a stream stores. */
  stored(stream: StreamName): readonly string[];
  /** Everything in a class, e.g. `mail.decode.>`; for permissions. */
  all(kind: string, component?: string): string;
  /** The broker's name of a stream. */
  stream(name: StreamName): string;
  /** The broker's name of the REGISTRY bucket, and of the stream behind it. */
  readonly bucket: string;
  readonly bucketStream: string;
  /** Subject of a registry key, or of all keys under a prefix that ends in a dot. */
  key(keyOrPrefix: string): string;
  keyOf(subject: string): string;
}

const captured: Readonly<Record<StreamName, readonly string[]>> = {
  MAIL: ['mail.>'],
  JOBS: ['job.>'],
  TAPE: ['out.>', 'ack.>', 'load.>', 'down.>', 'tape.>'],
  KV: ['kv.>'],
  JOURNAL: ['journal.>'],
  DEAD: ['dead.>'],
};

const tokenGrammar = /^[A-Za-z0-9_*-]{1,64}$/;
function token(text: string): string {
  if (!tokenGrammar.test(text)) throw new TypeError(`not a subject token: ${text}`);
  return text;
}

const cache = new Map<string, Subjects>();

/** The builders of one namespace. Throws TypeError if the name is not 1 to 32 of [a-z0-9-]. */
export function subjects(namespace: string): Subjects {
  let found = cache.get(namespace);
  if (!found) {
    found = build(namespace);
    cache.set(namespace, found);
  }
  return found;
}

function build(namespace: string): Subjects {
  if (!isNamespace(namespace)) throw new TypeError(`not a namespace: ${namespace} (1 to 32 of a-z, 0-9 and -)`);
  const root = `dyn.${namespace}.`;
  const bucket = `DYN_${namespace}_REGISTRY`;
  const keyRoot = `$KV.${bucket}.`;
  const ofInstance = (kind: string) => (component?: Component, incarnation?: string) =>
    component === undefined
      ? `${root}${kind}.>`
      : `${root}${kind}.${component}.${incarnation === undefined ? '*' : token(incarnation)}`;
  return {
    namespace,
    mail: (to) => `${root}mail.${to}`,
    mailOf: (component, incarnation) => `${root}mail.${component}.${token(incarnation)}.>`,
    query: (to) => `${root}query.${to}`,
    job: (pool) => `${root}job.${token(pool)}`,
    out: (gateway) => `${root}out.${token(gateway)}`,
    ack: ofInstance('ack'),
    load: ofInstance('load'),
    down: ofInstance('down'),
    replica: ofInstance('replica'),
    tape: ofInstance('tape'),
    turns: (component, incarnation) => `${root}tape.${component}.${token(incarnation)}.turns`,
    kv: (incarnation, rank) => `${root}kv.${token(incarnation)}.${rank ?? '*'}`,
    journal: (gateway) => `${root}journal.${token(gateway)}`,
    dead: (component) => `${root}dead.${component}`,
    stored: (stream) => captured[stream].map((tail) => root + tail),
    all: (kind, component) => `${root}${kind}.${component === undefined ? '' : `${component}.`}>`,
    stream: (name) => `DYN_${namespace}_${name}`,
    bucket,
    bucketStream: `KV_${bucket}`,
    key: (keyOrPrefix) => `${keyRoot}${keyOrPrefix}${keyOrPrefix === '' || keyOrPrefix.endsWith('.') ? '>' : ''}`,
    keyOf: (subject) => subject.slice(keyRoot.length),
  };
}

/** Does a subject match a filter with `*` and `>`? */
export function matches(filter: string, subject: string): boolean {
  if (filter === subject || filter === '>') return true;
  // Nearly all filters are a subject, or everything below one.
  if (!filter.includes('*')) {
    return filter.endsWith('.>') && subject.length >= filter.length && subject.startsWith(filter.slice(0, -1));
  }
  const want = filter.split('.');
  const have = subject.split('.');
  for (let i = 0; i < want.length; i++) {
    if (want[i] === '>') return have.length > i;
    if (i >= have.length || (want[i] !== '*' && want[i] !== have[i])) return false;
  }
  return want.length === have.length;
}
