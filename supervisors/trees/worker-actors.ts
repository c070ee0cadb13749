/**
 * The actors of a worker and what joins them to the bus: gpu → worker → beacon, the mailbox in front, the registry behind. The gpu actor
 * is first: what used its handles has ended before it does (design 3). Nothing here knows of the process around it, so the simulator runs
 * the same.
 */
import {
  type Behaviour,
  beaconActor,
  type DecodeFirstConfig,
  decodeActor,
  type GpuMessage,
  gpuActor,
  type Kernel,
  prefillActor,
  type Ref,
  type WorkerConfig,
  type WorkerFacts,
  type WorkerMessage,
} from '../../actors/index.js';
import type { Engine } from '../../gpu/index.js';
import {
  address,
  announce,
  type Body,
  type Bus,
  type InstanceInfo,
  type JobTaker,
  listenFrames,
  openJobBoard,
  openMailbox,
  serveQueries,
  takeJobs,
  watchInstances,
} from '../../transport/index.js';
import { openCacheReports } from './kv-reports.js';
import { joinPeers, poolOf } from './peers.js';

const resyncMs = 500;
/** D waits for P this long without news; P says something every second. */
const grantMs = 5_000;
/** Exported KV is fetched within milliseconds; this is for a D that died. */
const leaseMs = 10_000;
/** Tokens of finished requests whose end nobody acknowledged. */
const keepMs = 30_000;

export interface WorkerParts {
  readonly role: 'prefill' | 'decode';
  readonly bus: Bus;
  readonly kernel: Kernel;
  readonly engine: Engine;
  /** As it is announced. */
  readonly info: InstanceInfo;
  /** Resident memory of the process, bytes. */
  readonly rss: () => number;
  /** Decode-first: prompts go by a queue, and these to a decode worker's own engine; absent: the router brings them (prefill-first). */
  readonly decodeFirst?: DecodeFirstConfig;
  /** A span for a traced request's time here; undefined while tracing is off. */
  readonly span?: WorkerConfig['span'];
}

export interface WorkerActors {
  /** In the order of their start: the end of any is the end of the worker. */
  readonly essential: readonly Ref<never>[];
  readonly badMail: () => number;
  readonly depth: () => number;
  facts(timeoutMs: number): Promise<WorkerFacts>;
  /** From now on these decide which prompts D leaves to prefill workers. */
  limitPrefills(limits: DecodeFirstConfig): void;
  /** Takes nothing new and resolves when it holds nothing more; rejects with ACT_TIMEOUT after `deadlineMs`. */
  drain(deadlineMs: number): Promise<unknown>;
  /** Resolves when no gateway is in the registry. */
  unneeded(): Promise<void>;
  /** Leaves the registry and hears nothing more. The actors live on. */
  leave(): Promise<void>;
}

export async function startWorkerActors(parts: WorkerParts): Promise<WorkerActors> {
  const { role, bus, kernel, engine, info } = parts;
  const { incarnation } = info;
  const cache = openCacheReports(bus, role, incarnation, engine);
  const gpu: Ref<GpuMessage> = kernel.spawn(
    gpuActor(engine, (self) => ({
      step(step) {
        kernel.tell(self, { type: 'EngineStepped', step });
        if (step.cache !== undefined) cache.report(step.cache);
      },
      died: (error) => void kernel.tell(self, { type: 'EngineDied', error }),
    })),
    address(role, incarnation, 'gpu'),
  );
  const here = address(role, incarnation, 'worker');
  // A job comes on a subscription, so never before the actor that it is for.
  const taker: JobTaker | undefined =
    role === 'prefill' && parts.decodeFirst !== undefined
      ? takeJobs(bus, poolOf(engine.card), here, (ticket, { req, attempt, budgetMs, body }) => {
          kernel.tell(worker, { type: 'Job', ticket, req, attempt, budgetMs, body });
        })
      : undefined;
  const worker: Ref<WorkerMessage> = kernel.spawn(workerBehaviour(parts, gpu, taker), here);
  const beacon = kernel.spawn(
    beaconActor(incarnation, engine.limits, gpu, worker, parts.rss),
    address(role, incarnation, 'beacon'),
  );

  const mailbox = await openMailbox(bus, here, (mail) => void kernel.tell(worker, mail as WorkerMessage));
  const acks = listenFrames(bus, 'ack', here, { message: (frame) => void kernel.tell(worker, frame as WorkerMessage) });
  const queries = serveQueries(bus, here, {
    Resync: {
      answer: 'Resynced',
      handle: ({ body }) =>
        kernel.ask<WorkerMessage, Body<'Resynced'>>(
          worker,
          (replyTo) => ({ type: 'ResyncAsk', body, replyTo }),
          resyncMs,
        ),
    },
  });
  const gateways = new Set<string>();
  let unneeded: (() => void)[] = [];
  const gatewayGone = (gateway: string) => {
    kernel.tell(worker, { type: 'GatewayGone', incarnation: gateway });
    gateways.delete(gateway);
    if (gateways.size > 0) return;
    for (const resolve of unneeded) resolve();
    unneeded = [];
  };
  const peers = joinPeers(info, (news) => void kernel.tell(worker, news));
  const deaths = listenFrames(bus, 'down', here, {
    message: (frame) => {
      if (frame.type !== 'Down') return;
      if (frame.to.startsWith('gateway.')) gatewayGone(frame.body.incarnation);
      else peers.dead(frame.body.incarnation);
    },
  });
  const watch = await watchInstances(bus, ({ kind, info: other }) => {
    if (other.component === 'gateway') {
      if (kind === 'gone') gatewayGone(other.incarnation);
      else gateways.add(other.incarnation);
    }
    peers.changed(other, kind === 'gone');
  });
  const unlisten = bus.onState((state) => {
    if (state === 'up') kernel.tell(worker, { type: 'BrokerBack' });
  });
  const announcement = announce(bus, info);

  return {
    essential: [gpu, worker, beacon],
    badMail: () => mailbox.counters.malformed,
    depth: () => kernel.depth(worker),
    facts: (timeoutMs) =>
      kernel.ask<WorkerMessage, WorkerFacts>(worker, (replyTo) => ({ type: 'FactsAsk', replyTo }), timeoutMs),
    limitPrefills: (limits) => void kernel.tell(worker, { type: 'PrefillLimits', limits }),
    drain(deadlineMs) {
      announcement.update({ ...info, draining: true });
      return kernel.ask<WorkerMessage, { readonly type: 'Idle' }>(
        worker,
        (replyTo) => ({ type: 'Drain', idle: replyTo }),
        deadlineMs,
      );
    },
    unneeded: () => (gateways.size === 0 ? Promise.resolve() : new Promise((resolve) => unneeded.push(resolve))),
    async leave() {
      await announcement.withdraw();
      for (const source of [mailbox, acks, deaths, watch]) source.stop();
      taker?.stop();
      unlisten();
      queries();
      cache.stop();
    },
  };
}

function workerBehaviour(
  parts: WorkerParts,
  gpu: Ref<GpuMessage>,
  taker: JobTaker | undefined,
): Behaviour<WorkerMessage, unknown> {
  const { role, bus, engine, info, span, decodeFirst } = parts;
  const { id, fingerprint, kvType, kvLayout, blockTokens } = engine.card;
  const config = {
    leg: role,
    incarnation: info.incarnation,
    model: id,
    fingerprint,
    kvType,
    layout: kvLayout,
    blockTokens,
    slots: engine.limits.slots,
    // Beyond its slots a worker holds requests that wait for one, and finished ones whose end was not acknowledged yet.
    maxJobs: engine.limits.slots * 4 + 64,
    grantMs,
    leaseMs,
    keepMs,
    ...(span === undefined ? {} : { span }),
    ...(decodeFirst === undefined ? {} : { remotePrefill: decodeFirst }),
  };
  if (role === 'decode') {
    const board = openJobBoard(bus, poolOf(engine.card), address(role, info.incarnation, 'worker'));
    return decodeActor(config, gpu, board, () => engine.pool) as Behaviour<WorkerMessage, unknown>;
  }
  const { pool } = engine;
  if (pool === undefined) throw new Error(`the ${engine.card.engine} engine of a prefill worker exports no KV`);
  return prefillActor(config, gpu, () => pool, taker) as Behaviour<WorkerMessage, unknown>;
}
