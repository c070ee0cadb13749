/** What a router is told once, and what it keeps. */
import type { Ref } from '../kernel/contract.js';
import { SessionAffinity, type SessionsConfig } from './affinity.js';
import { Caches, type CachesConfig } from './caches.js';
import type { Fleet, RouteRequest, Worker } from './choose.js';
import type { CostConfig } from './cost.js';
import type { DisaggRouting } from './disagg.js';
import { type InhibitionConfig, Inhibitions } from './inhibition.js';
import { Ledger } from './ledger.js';
import type { Hits, RouterFacts, RouterReply } from './messages.js';
import { type QueueConfig, RouterQueue } from './queue.js';
import { type ReplicaSync, replicaSync } from './replica-sync.js';
import { RouteLog, type RouteRecord } from './route-log.js';
import type { RouteTape } from './route-tape.js';
import type { SelectionMode } from './select.js';
import { busyWorkers, type RouterTuning, routerTuning } from './tuning.js';

export interface RouterConfig {
  /** Incarnation of the gateway whose router it is. */
  readonly gateway: string;
  readonly mode: SelectionMode;
  /** Tokens of a KV block, as prompts are hashed by. */
  readonly blockTokens: number;
  /** Of a worker that computes the prompt; mode kv only, as is `caches`. */
  readonly cost: CostConfig;
  readonly caches: CachesConfig;
  readonly disagg?: DisaggRouting;
  /** One request more than it may hold is refused with QUEUE_FULL or CLASS_FULL. */
  readonly queue: QueueConfig;
  /** What holds until a Tune says otherwise. */
  readonly tuning?: RouterTuning;
  /** Undefined: sessions do not matter. */
  readonly sessions?: SessionsConfig;
  readonly inhibition: InhibitionConfig;
  /** Where decisions are written down; undefined: nowhere. */
  readonly tape?: RouteTape | undefined;
}

export interface Placed {
  readonly attempt: number;
  readonly decode: string;
  readonly prefill: string | undefined;
  readonly at: number;
  readonly promptTokens: number;
  readonly record: RouteRecord;
}

export interface Asked {
  readonly request: RouteRequest;
  readonly replyTo: Ref<RouterReply>;
}

export interface RouterState extends Fleet {
  readonly workers: Map<string, Worker>;
  readonly placed: Map<number, Placed>;
  readonly queue: RouterQueue<Asked>;
  readonly sessions: SessionAffinity | undefined;
  /** How often a request was refused, by reason. */
  readonly refused: Map<string, number>;
  readonly affinity: Record<NonNullable<RouteRecord['session']>, number>;
  tuning: RouterTuning;
  readonly log: RouteLog;
  readonly replicas: ReplicaSync;
  readonly hits: Hits;
  /** Workers whose cache was found to lack what it should have: said once. */
  readonly drifted: Set<string>;
  turn: number;
}

const noTuning: RouterTuning = { requestLimit: 0 };

/** What is running and cached, known of by the other routers' word too. */
function shared({ gateway, blockTokens, mode, caches: cachesConfig }: RouterConfig) {
  const ledger = new Ledger(blockTokens);
  const caches = mode === 'kv' ? new Caches(cachesConfig) : undefined;
  const replicas = replicaSync(gateway, ledger, caches);
  return { ledger, caches, replicas, peers: replicas.peers };
}

export function newState(config: RouterConfig): RouterState {
  return {
    tuning: routerTuning(config.tuning ?? noTuning),
    sessions: config.sessions === undefined ? undefined : new SessionAffinity(config.sessions),
    refused: new Map(),
    affinity: { new: 0, kept: 0, moved: 0 },
    workers: new Map(),
    placed: new Map(),
    queue: new RouterQueue(config.queue),
    inhibitions: new Inhibitions(config.inhibition),
    ...shared(config),
    log: new RouteLog(),
    hits: { prompt: 0, expected: 0, cached: 0, missed: 0, unforeseen: 0 },
    drifted: new Set(),
    turn: 0,
  };
}

export function factsOf(state: RouterState, now: number): RouterFacts {
  const suspects: { incarnation: string; reason: string }[] = [];
  for (const [incarnation, { suspect }] of state.workers) {
    if (suspect !== undefined) suspects.push({ incarnation, reason: suspect });
  }
  const { queue, inhibitions, sessions, affinity } = state;
  return {
    queued: queue.size,
    waiting: [...queue.depths(), { class: 'again', waiting: queue.again }],
    refused: Object.fromEntries(state.refused),
    sessions: { size: sessions?.size ?? 0, ...affinity },
    busy: busyWorkers(state),
    inhibited: inhibitions.list(now),
    suspects,
    inhibitions: inhibitions.total,
    index: state.caches?.stats(),
    hits: { ...state.hits },
    replicas: state.replicas.peers.facts(),
  };
}
