/** A gateway process: its actors, HTTP in front of them, and how they come to their end. */

import type { Server } from 'node:net';
import { hostname } from 'node:os';
import type { FrontendFacts, RouterFacts } from '../../actors/index.js';
import {
  createDetokenizers,
  createGateway,
  createModelRegistry,
  createPreprocessor,
  type Gateway,
  startTracing,
} from '../../gateway/index.js';
import { openMockVocabulary, openVocabulary, type Vocabulary } from '../../gpu/index.js';
import type { Bus, InstanceInfo } from '../../transport/index.js';
import type { GatewayBoot, RunningTree } from '../boot.js';
import { changeSettings } from '../live-settings.js';
import { actorLogs, processLogger } from '../process-log.js';
import type { GatewayAnswer, GatewayQuestion } from '../route-question.js';
import { startGatewayActors } from './gateway-actors.js';
import { gatewayStatus, keptOut } from './gateway-status.js';
import { openProcess } from './process.js';
import { routeAnswers } from './route-answers.js';
import { busyThresholdSettings, busyThresholds } from './router-settings.js';
import { openTurns } from './turns.js';

const factsMs = 500;
/** Of both engines; the embedded one computes prompts in multiples of it (design 6.3). */
const blockTokens = 64;

export async function startGateway(boot: GatewayBoot): Promise<RunningTree> {
  const { config, incarnation } = boot;
  const logger = processLogger(boot.instance, config.log.level);
  const host = await openProcess(boot, actorLogs(logger));
  const { bus, kernel } = host;
  const models = createModelRegistry();
  models.add(openVocabularyOf(boot), { contextTokens: config.model.contextTokens });

  let http: Gateway | undefined;
  const limits = { bodyBytes: config.http.bodyBytes, keepAliveMs: config.http.keepAliveMs };
  const preprocessor = createPreprocessor(models, limits, (error) =>
    logger.error({ err: error }, 'a request could not be prepared'),
  );
  const info: InstanceInfo = {
    component: 'gateway',
    instance: boot.instance,
    incarnation,
    node: boot.node,
    host: hostname(),
    pid: process.pid,
    draining: false,
  };
  const tape = tapeOf(boot, bus, (facts, message) => logger.warn(facts, message));
  host.afterActors(() => tape?.stop());
  const actors = await startGatewayActors({
    bus,
    post: host.post,
    kernel,
    info,
    config,
    blockTokens,
    ports: {
      preprocessor,
      detokenizers: createDetokenizers(models),
      summary: (summary) => http?.observe(summary),
    },
    warn: (facts, message) => logger.warn(facts, message),
    tape,
  });
  for (const actor of actors.essential) host.essential(actor);

  let facts: FrontendFacts | undefined;
  let routing: RouterFacts | undefined;
  let mailDepth = 0;
  const poll = setInterval(() => {
    actors
      .routerFacts(factsMs)
      .then((next) => {
        routing = next;
      })
      .catch(() => {});
    actors
      .frontendFacts(factsMs)
      .then((next) => {
        facts = next;
      })
      .catch(() => {})
      // Looked at between two questions, which would count themselves.
      .finally(() => {
        mailDepth = actors.depth();
      });
  }, factsMs);

  const tracing = await startTracing(config.telemetry.otlpUrl, 'dynact-gateway', logger);
  const gateway = createGateway({
    models,
    submit: (request) => kernel.tell(actors.frontend, request),
    status: () =>
      gatewayStatus({
        model: boot.model.id,
        brokerUp: bus.state === 'up',
        instances: actors.instances(),
        loads: actors.loads,
        frontend: facts,
        router: routing,
        kv: actors.kv(),
      }),
    busyThresholds: {
      get: () => busyThresholds(actors.settings.config()),
      set: async (values) => void (await changeSettings(bus, busyThresholdSettings(values))),
    },
    listen: { server: boot.listener as unknown as Server },
    log: logger,
    limits,
    allowedHosts: list(config.http.allowedHosts),
    allowedOrigins: list(config.http.allowedOrigins),
    tracing,
  });
  http = gateway;
  actors.announce();
  await gateway.listen();
  host.onEnd(async () => {
    clearInterval(poll);
    await gateway.stop(0);
    await actors.leave();
  });

  const routes = routeAnswers({
    kernel,
    router: actors.router,
    preprocessor,
    gateway: incarnation,
    model: boot.model.id,
    blockTokens,
  });
  const tree = host.tree({
    async drain(deadlineMs) {
      actors.drain();
      // The frontend goes on: what still comes in comes from clients that could not know yet.
      await gateway.stop(deadlineMs);
    },
    facts: () => ({
      inFlight: gateway.inFlight,
      served: facts?.ended ?? 0,
      leaked: facts?.leaked ?? 0,
      migrations: facts?.migrations ?? 0,
      queued: routing?.queued ?? 0,
      ...keptOut(routing),
      mailDepth,
      deadLetters: kernel.counters.deadLetters,
      outbox: host.post.outbox.messages,
    }),
  });
  async function answer(question: GatewayQuestion): Promise<GatewayAnswer> {
    if (question.type === 'explain' || question.type === 'dry-run') return routes(question);
    const shown = new Map(actors.settings.changed());
    if (question.type === 'set') {
      // What has just been set may still be on its way back.
      for (const [key, value] of await changeSettings(bus, new Map([[question.key, question.value]]))) {
        if (value === undefined) shown.delete(key);
        else shown.set(key, value);
      }
    }
    return { gateway: incarnation, settings: Object.fromEntries(shown) };
  }
  return { ...tree, answer };
}

function tapeOf({ config, incarnation }: GatewayBoot, bus: Bus, warn: Parameters<typeof openTurns>[1]['warn']) {
  const { level } = config.tape;
  if (level === 'off') return undefined;
  return openTurns(bus, { component: 'gateway', incarnation, content: level === 'full', warn });
}

function openVocabularyOf(boot: GatewayBoot): Vocabulary {
  if (boot.config.engine.kind === 'mock') return openMockVocabulary(boot.model.id);
  return openVocabulary({ model: boot.model.id, path: boot.model.path });
}

const list = (text: string): string[] =>
  text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
