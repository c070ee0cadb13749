import { DiscardPolicy, RetentionPolicy, StorageType, type StreamConfig } from '@nats-io/jetstream';
import { nanos } from '@nats-io/transport-node';
import type { Component } from '../address.js';
import { isNetError, NetError } from '../errors.js';
import { payloadBytes } from '../limits.js';
import {
  type BucketPlan,
  defaultStreamSettings,
  planRegistry,
  planStreams,
  type StreamPlan,
  type StreamSettings,
} from '../streams.js';
import { subjects } from '../subjects.js';
import type { NatsBus } from './bus.js';
import { netError } from './problems.js';

export interface EnsureOptions {
  /**
   * The broker is ours alone: a stream left by an earlier configuration is changed to the wanted one, and made anew if its storage or
   * retention differs. Otherwise a difference is an error.
   */
  readonly adopt?: boolean;
}

/**
 * Creates what is missing and compares every setting that matters with what the broker answers. Rejects with NET_CONFIG, which names
 * the setting, with NET_NO_ROOM, or with what the broker said. Needs the rights of the node.
 */
export async function ensureStreams(
  bus: NatsBus,
  settings: Partial<StreamSettings> = {},
  options: EnsureOptions = {},
): Promise<void> {
  const wanted = { ...defaultStreamSettings, ...settings };
  const configs = [
    ...planStreams(bus.namespace, wanted).map(streamConfig),
    bucketConfig(planRegistry(bus.namespace, wanted)),
  ];
  for (const config of configs) await ensure(bus, config, options.adopt ?? false);
}

type Wanted = Partial<StreamConfig> & Pick<StreamConfig, 'name' | 'storage' | 'retention'>;

async function ensure(bus: NatsBus, wanted: Wanted, adopt: boolean): Promise<void> {
  const { streams } = bus.manager;
  try {
    let found = await current(bus, wanted.name);
    if (found && adopt && difference(found, wanted)) {
      if (found.storage !== wanted.storage || found.retention !== wanted.retention) {
        await streams.delete(wanted.name);
        found = undefined;
      } else found = (await streams.update(wanted.name, wanted)).config;
    }
    found ??= (await streams.add(wanted)).config;
    const wrong = difference(found, wanted);
    if (wrong) throw new NetError('NET_CONFIG', { stream: wanted.name, ...wrong });
  } catch (error) {
    const problem = netError(error, wanted.name);
    if (problem.code !== 'NET_STREAM_FULL') throw problem;
    const { name: stream, storage, max_bytes: bytes = 0 } = wanted;
    throw new NetError('NET_NO_ROOM', { stream, storage, bytes, why: problem.message }, error);
  }
}

/**
 * Removes the mail of an incarnation that will never read it. Needs the rights of the node; rejects with what the broker said.
 */
export async function purgeMail(bus: NatsBus, component: Component, incarnation: string): Promise<void> {
  const s = subjects(bus.namespace);
  const filter = s.mailOf(component, incarnation);
  try {
    await bus.manager.streams.purge(s.stream('MAIL'), { filter });
  } catch (error) {
    throw netError(error, filter);
  }
}

/** How many letters DEAD holds. Needs the rights of the node; rejects with what the broker said. */
export async function countDead(bus: NatsBus): Promise<number> {
  const stream = subjects(bus.namespace).stream('DEAD');
  try {
    return (await bus.manager.streams.info(stream)).state.messages;
  } catch (error) {
    throw netError(error, stream);
  }
}

async function current(bus: NatsBus, name: string): Promise<StreamConfig | undefined> {
  try {
    return (await bus.manager.streams.info(name)).config;
  } catch (error) {
    if (isNetError(netError(error, name), 'NET_NO_STREAM')) return undefined;
    throw error;
  }
}

function difference(found: StreamConfig, wanted: Wanted) {
  for (const [setting, value] of Object.entries(wanted)) {
    const has = found[setting as keyof StreamConfig];
    if (JSON.stringify(has) !== JSON.stringify(value)) {
      return { setting, found: JSON.stringify(has) ?? 'absent', wanted: JSON.stringify(value) };
    }
  }
  return undefined;
}

function streamConfig(plan: StreamPlan): Wanted {
  return {
    name: plan.name,
    subjects: [...plan.subjects],
    retention: plan.retention === 'workqueue' ? RetentionPolicy.Workqueue : RetentionPolicy.Limits,
    storage: plan.storage === 'file' ? StorageType.File : StorageType.Memory,
    discard: plan.discard === 'new' ? DiscardPolicy.New : DiscardPolicy.Old,
    max_age: nanos(plan.maxAgeMs),
    max_bytes: plan.maxBytes,
    max_msg_size: payloadBytes,
    duplicate_window: nanos(plan.duplicateWindowMs),
    num_replicas: plan.replicas,
    allow_rollup_hdrs: true,
  };
}

/** What NATS's own KV clients make of a bucket with one revision per key, so that every NATS tool can read it. */
function bucketConfig(plan: BucketPlan): Wanted {
  return {
    name: `KV_${plan.name}`,
    subjects: [`$KV.${plan.name}.>`],
    retention: RetentionPolicy.Limits,
    storage: plan.storage === 'file' ? StorageType.File : StorageType.Memory,
    discard: DiscardPolicy.New,
    max_msgs_per_subject: 1,
    max_age: nanos(plan.ttlMs),
    max_bytes: plan.maxBytes,
    duplicate_window: nanos(Math.min(plan.ttlMs, 120_000)),
    num_replicas: plan.replicas,
    allow_rollup_hdrs: true,
    allow_direct: true,
    deny_delete: true,
    allow_msg_ttl: true,
    subject_delete_marker_ttl: nanos(plan.markerTtlMs),
  };
}
