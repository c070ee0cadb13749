/**
 * A prefill or decode process: gpu → worker → beacon on one kernel, the mailbox in front, the registry behind. The gpu actor is
 * first: what used its handles has ended before it does (design 3).
 */
import { hostname } from 'node:os';
import type { Logger } from 'pino';
import {
  type Behaviour,
  beaconActor,
  decodeActor,
  type GpuMessage,
  gpuActor,
  prefillActor,
  type Ref,
  type WorkerFacts,
  type WorkerMessage,
} from '../../actors/index.js';
import type { Tracing } from '../../gateway/index.js';
import type { Engine } from '../../gpu/index.js';
import {
  address,
  announce,
  type Body,
  type InstanceInfo,
  listenFrames,
  openMailbox,
  serveQueries,
  watchInstances,
} from '../../transport/index.js';
import type { RunningTree, WorkerBoot } from '../boot.js';
import { actorLogs, processLogger } from '../process-log.js';
import { openEngine } from './engine.js';
import { openCacheReports } from './kv-reports.js';
import { openProcess, within } from './process.js';

const factsMs = 500;
const resyncMs = 500;
/** D waits for P this long without news; P says something every second. */
const grantMs = 5_000;
/** Exported KV is fetched within milliseconds; this is for a D that died. */
const leaseMs = 10_000;
/** Tokens of finished requests whose end nobody acknowledged. */
const keepMs = 30_000;

export async function startWorker(boot: WorkerBoot): Promise<RunningTree> {
  const { role, incarnation } = boot;
  const logger = processLogger(boot.instance, boot.config.log.level);
  // Loading weights and connecting take their time side by side.
  const opening = openEngine(boot);
  opening.catch(() => {});
  const host = await openProcess(boot, actorLogs(logger));
  const { bus, kernel } = host;
  let engine: Engine;
  try {
    engine = await opening;
  } catch (error) {
    await bus.close();
    throw error;
  }
  host.afterActors(() => engine.stop());
  host.faults?.engine(engine);

  const cache = openCacheReports(bus, role, incarnation, engine);
  host.onEnd(() => cache.stop());
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
  const tracing = await openTracing(boot, logger);
  host.afterActors(() => tracing?.stop());
  const worker = kernel.spawn(workerBehaviour(boot, engine, gpu, tracing), here);
  const beacon = kernel.spawn(
    beaconActor(incarnation, engine.limits, gpu, worker, () => process.memoryUsage.rss()),
    address(role, incarnation, 'beacon'),
  );
  for (const actor of [gpu, worker, beacon]) host.essential(actor);

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
  const gatewayGone = (gateway: string) => void kernel.tell(worker, { type: 'GatewayGone', incarnation: gateway });
  const deaths = listenFrames(bus, 'down', here, {
    message: (frame) => {
      if (frame.type === 'Down' && frame.to.startsWith('gateway.')) gatewayGone(frame.body.incarnation);
    },
  });
  const watch = await watchInstances(bus, ({ kind, info }) => {
    if (kind === 'gone' && info.component === 'gateway') gatewayGone(info.incarnation);
  });
  const info = instanceInfo(boot, engine);
  const announcement = announce(bus, info);
  host.onEnd(async () => {
    await announcement.withdraw();
    for (const source of [mailbox, acks, deaths, watch]) source.stop();
    queries();
  });

  let facts: WorkerFacts = { jobs: 0, granted: 0, accepted: 0, refused: 0, ended: 0, leaked: 0 };
  let mailDepth = 0;
  const poll = setInterval(() => {
    kernel
      .ask<WorkerMessage, WorkerFacts>(worker, (replyTo) => ({ type: 'FactsAsk', replyTo }), factsMs)
      .then((next) => {
        facts = next;
      })
      .catch(() => {})
      // Looked at between two questions, which would count themselves.
      .finally(() => {
        mailDepth = kernel.depth(worker);
      });
  }, factsMs);
  host.onEnd(() => clearInterval(poll));

  return host.tree({
    async drain(deadlineMs) {
      announcement.update({ ...info, draining: true });
      const idle = kernel.ask<WorkerMessage, { readonly type: 'Idle' }>(
        worker,
        (replyTo) => ({ type: 'Drain', idle: replyTo }),
        deadlineMs,
      );
      await within(idle, deadlineMs);
    },
    facts: () => {
      const { busySlots, waiting, usedKvBlocks, cachedBlocks, exportedBlocks, steps } = engine.load();
      return {
        inFlight: facts.jobs,
        served: facts.ended,
        refused: facts.refused,
        leaked: facts.leaked,
        slots: `${busySlots}/${engine.limits.slots}`,
        waiting,
        queued: Math.max(0, busySlots + waiting - facts.granted),
        kvBlocks: usedKvBlocks,
        cachedBlocks,
        exportedBlocks,
        steps,
        mailDepth,
        deadLetters: kernel.counters.deadLetters,
        badMail: mailbox.counters.malformed,
      };
    },
  });
}

/** A worker needs nothing of the gateway but this, and only when traces are wanted. */
async function openTracing(boot: WorkerBoot, logger: Logger): Promise<Tracing | undefined> {
  const { otlpUrl } = boot.config.telemetry;
  if (otlpUrl === '') return undefined;
  const { startTracing } = await import('../../gateway/index.js');
  return startTracing(otlpUrl, `dynact-${boot.role}`, logger);
}

function workerBehaviour(
  boot: WorkerBoot,
  engine: Engine,
  gpu: Ref<GpuMessage>,
  tracing: Tracing | undefined,
): Behaviour<WorkerMessage, unknown> {
  const { role, incarnation } = boot;
  const { id, fingerprint, kvType, kvLayout, blockTokens } = engine.card;
  const config = {
    leg: role,
    incarnation,
    model: id,
    fingerprint,
    kvType,
    layout: kvLayout,
    blockTokens,
    // Beyond its slots a worker holds requests that wait for one, and finished ones whose end was not acknowledged yet.
    maxJobs: engine.limits.slots * 4 + 64,
    grantMs,
    leaseMs,
    keepMs,
    span: (name: string, traceparent: string) => tracing?.start(name, traceparent),
  };
  if (role === 'decode') return decodeActor(config, gpu) as Behaviour<WorkerMessage, unknown>;
  const { pool } = engine;
  if (pool === undefined) throw new Error(`the ${engine.card.engine} engine of a prefill worker exports no KV`);
  return prefillActor(config, gpu, () => pool) as Behaviour<WorkerMessage, unknown>;
}

function instanceInfo(boot: WorkerBoot, engine: Engine): InstanceInfo {
  return {
    component: boot.role,
    instance: boot.instance,
    incarnation: boot.incarnation,
    node: boot.node,
    host: hostname(),
    pid: process.pid,
    draining: false,
    model: engine.card.id,
    engine: engine.card.engine,
    fingerprint: engine.card.fingerprint,
    slots: engine.limits.slots,
    kvBlocks: engine.limits.kvBlocks,
    blockTokens: engine.card.blockTokens,
    contextTokens: engine.limits.sequenceTokens,
  };
}
