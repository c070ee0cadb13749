/** A prefill or decode process: its engine, its actors, and how they come to their end. */
import { hostname } from 'node:os';
import type { Logger } from 'pino';
import { decodeFirstConfig, type WorkerFacts } from '../../actors/index.js';
import type { Tracing } from '../../gateway/index.js';
import type { Engine } from '../../gpu/index.js';
import type { InstanceInfo } from '../../transport/index.js';
import type { RunningTree, WorkerBoot } from '../boot.js';
import { followSettings } from '../live-settings.js';
import { actorLogs, processLogger } from '../process-log.js';
import { within } from '../within.js';
import { openEngine } from './engine.js';
import { openProcess } from './process.js';
import { startWorkerActors } from './worker-actors.js';

const factsMs = 500;
/** The mock engine’s own default. */
const mockBatchTokens = 8_192;

export async function startWorker(boot: WorkerBoot): Promise<RunningTree> {
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

  const tracing = await openTracing(boot, logger);
  host.afterActors(() => tracing?.stop());
  const worker = await startWorkerActors({
    role: boot.role,
    bus,
    kernel,
    engine,
    info: instanceInfo(boot, engine),
    rss: () => process.memoryUsage.rss(),
    ...(boot.config.disagg.flow === 'decode-first' && { decodeFirst: decodeFirstConfig(boot.config.disagg) }),
    ...(tracing && { span: (name: string, traceparent: string) => tracing.start(name, traceparent) }),
  });
  for (const actor of worker.essential) host.essential(actor);
  host.onEnd(() => worker.leave());
  if (boot.role === 'decode' && boot.config.disagg.flow === 'decode-first') {
    const settings = await followSettings(
      bus,
      boot.config,
      ({ disagg }) => worker.limitPrefills(decodeFirstConfig(disagg)),
      { keep: false, warn: (facts, message) => logger.warn(facts, message) },
    );
    host.onEnd(settings.stop);
  }

  let facts: WorkerFacts = {
    jobs: 0,
    granted: 0,
    accepted: 0,
    refused: 0,
    ended: 0,
    leaked: 0,
    offered: 0,
    requeued: 0,
  };
  let mailDepth = 0;
  /** For the next time it is asked: an idle process has no timer for it. */
  const refresh = () => {
    worker
      .facts(factsMs)
      .then((next) => {
        facts = next;
      })
      .catch(() => {})
      // Looked at between two questions, which would count themselves.
      .finally(() => {
        mailDepth = worker.depth();
      });
  };

  const tree = host.tree({
    drain: (deadlineMs) => within(worker.drain(deadlineMs), deadlineMs),
    facts: () => {
      refresh();
      const { busySlots, waiting, usedKvBlocks, cachedBlocks, exportedBlocks, steps } = engine.load();
      return {
        inFlight: facts.jobs,
        served: facts.ended,
        refused: facts.refused,
        leaked: facts.leaked,
        ...(facts.offered > 0 && { offered: facts.offered, requeued: facts.requeued }),
        slots: `${busySlots}/${engine.limits.slots}`,
        waiting,
        queued: Math.max(0, busySlots + waiting - facts.granted),
        kvBlocks: usedKvBlocks,
        cachedBlocks,
        exportedBlocks,
        steps,
        mailDepth,
        deadLetters: kernel.counters.deadLetters,
        badMail: worker.badMail(),
      };
    },
  });
  return { ...tree, unneeded: () => worker.unneeded() };
}

/** A worker needs nothing of the gateway but this, and only when traces are wanted. */
async function openTracing(boot: WorkerBoot, logger: Logger): Promise<Tracing | undefined> {
  const { otlpUrl } = boot.config.telemetry;
  if (otlpUrl === '') return undefined;
  const { startTracing } = await import('../../gateway/index.js');
  return startTracing(otlpUrl, `dynact-${boot.role}`, logger);
}

function instanceInfo(boot: WorkerBoot, engine: Engine): InstanceInfo {
  const taints = boot.config.engine.taints.split(',').filter((taint) => taint !== '');
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
    ...(taints.length > 0 && { taints }),
    contextTokens: engine.limits.sequenceTokens,
    batchTokens: boot.config.engine.kind === 'mock' ? mockBatchTokens : boot.config.engine.prefillChunkTokens,
  };
}
