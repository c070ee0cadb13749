/** A gateway process: router, frontend and registry on one kernel, HTTP in front of them, the bus behind. */

import type { Server } from 'node:net';
import { hostname } from 'node:os';
import {
  costConfig,
  type FrontendFacts,
  type FrontendMessage,
  frontendActor,
  type JournalMessage,
  journalActor,
  type Ref,
  type RegistryMessage,
  type RouterFacts,
  type RouterMessage,
  registryActor,
  routerActor,
} from '../../actors/index.js';
import {
  createDetokenizers,
  createGateway,
  createModelRegistry,
  createPreprocessor,
  type Gateway,
  startTracing,
} from '../../gateway/index.js';
import { hashToHex, openMockVocabulary, openVocabulary, type Vocabulary } from '../../gpu/index.js';
import {
  address,
  announce,
  type Body,
  deadLetter,
  type InstanceInfo,
  listenFrames,
  openJournal,
  watchInstances,
} from '../../transport/index.js';
import type { GatewayBoot, RunningTree } from '../boot.js';
import { actorLogs, processLogger } from '../process-log.js';
import { gatewayStatus, keptOut } from './gateway-status.js';
import { openKvViews } from './kv-views.js';
import { openProcess, within } from './process.js';
import { routeAnswers } from './route-answers.js';

const factsMs = 500;
/** The last record of the journal may take this long. */
const journalMs = 1_000;
const attempts = 4;
/** Of both engines; the embedded one computes prompts in multiples of it (design 6.3). */
const blockTokens = 64;
/** However often a worker failed: by then a probe a minute costs nobody much. */
const longestInhibitionMs = 60_000;
/** A worker that dies leaves its slots' requests behind at once; a fleet that goes on dying is asked at this rate. */
const retries = { burst: 1_024, perSecond: 64 };
/** Requests one gateway holds at most: each costs a socket and a few kilobytes. */
const maxRequests = 16_384;

export async function startGateway(boot: GatewayBoot): Promise<RunningTree> {
  const { config, incarnation } = boot;
  const logger = processLogger(boot.instance, config.log.level);
  const host = await openProcess(boot, actorLogs(logger));
  const { bus, kernel } = host;
  const models = createModelRegistry();
  models.add(openVocabularyOf(boot), { contextTokens: config.model.contextTokens });

  let instances: readonly InstanceInfo[] = [];
  const loads = new Map<string, Body<'Load'>>();
  let gateway: Gateway | undefined;
  const limits = { bodyBytes: config.http.bodyBytes, keepAliveMs: config.http.keepAliveMs };

  const { mode, queueLength, inhibitMs, kvIndexBytes, assumeMs } = config.routing;
  const router = kernel.spawn(
    routerActor({
      gateway: incarnation,
      mode,
      blockTokens,
      cost: costConfig(config.routing),
      caches: { maxBytes: kvIndexBytes, assumeMs },
      queueLimit: queueLength,
      inhibition: { firstMs: inhibitMs, longestMs: longestInhibitionMs },
    }),
    address('gateway', incarnation, 'router'),
  );
  const views =
    mode === 'kv'
      ? openKvViews(
          bus,
          blockTokens,
          (worker, rank, ops) => void kernel.tell(router, { type: 'KvChange', incarnation: worker, rank, ops }),
          logger,
        )
      : undefined;
  const journal = kernel.spawn(
    journalActor({ gateway: incarnation, graceMs: config.nats.leaseMs }, openJournal(bus)),
    address('gateway', incarnation, 'journal'),
  );
  const here = address('gateway', incarnation, 'frontend');
  const preprocessor = createPreprocessor(models, limits, (error) =>
    logger.error({ err: error }, 'a request could not be prepared'),
  );
  const frontend: Ref<FrontendMessage> = kernel.spawn(
    frontendActor(
      {
        gateway: incarnation,
        ...config.deadlines,
        attempts,
        maxRequests,
        retries,
        hashBlockTokens: mode === 'kv' ? blockTokens : 0,
      },
      {
        preprocessor,
        detokenizers: createDetokenizers(models),
        poison(id, model, prompt, detail) {
          const letter = { code: 'POISON_PROMPT', subject: here, seq: 0, attempt: 0, bytes: new Uint8Array(0) };
          deadLetter(bus, 'gateway', { ...letter, detail: `${id} ${model} prompt ${hashToHex(prompt)}: ${detail}` });
        },
        summary(summary) {
          gateway?.observe(summary);
          const { id: req, outcome, code, attempts, promptTokens, completionTokens } = summary;
          const end = { req, outcome, code, attempts, promptTokens, completionTokens };
          kernel.tell(journal, { type: 'Ended', end });
        },
        accepted: (req, { model, prompt }) =>
          void kernel.tell(journal, { type: 'Accepted', entry: { req, model, promptTokens: prompt.length } }),
      },
      router,
    ),
    here,
  );
  const registry: Ref<RegistryMessage> = kernel.spawn(
    registryActor(router, frontend, config.routing, (live) => {
      instances = live;
      // In the turn in which the router hears of it: nothing comes of a worker after its end.
      views?.follow(live);
      const known = new Set(live.map((info) => info.incarnation));
      for (const worker of loads.keys()) if (!known.has(worker)) loads.delete(worker);
    }),
    address('gateway', incarnation, 'registry'),
  );
  for (const actor of [router, journal, frontend, registry]) host.essential(actor);

  const gatewayGone = (gone: string) => void kernel.tell(journal, { type: 'GatewayGone', incarnation: gone });
  const frames = [
    listenFrames(bus, 'out', here, {
      step: (frame) => void kernel.tell(frontend, { type: 'Frame', frame }),
      message: (news) => void kernel.tell(frontend, news as FrontendMessage),
    }),
    listenFrames(bus, 'load', here, {
      message(load) {
        kernel.tell(registry, load as RegistryMessage);
        if (load.type === 'Load') loads.set(load.body.incarnation, load.body);
      },
    }),
    listenFrames(bus, 'down', here, {
      message(down) {
        kernel.tell(registry, down as RegistryMessage);
        if (down.type === 'Down' && down.to.startsWith('gateway.')) gatewayGone(down.body.incarnation);
      },
    }),
  ];
  const watch = await watchInstances(bus, ({ kind, info }) => {
    if (info.component === 'gateway') {
      if (kind === 'gone') gatewayGone(info.incarnation);
      else kernel.tell(journal, { type: 'GatewaySeen', incarnation: info.incarnation });
    }
    if (kind === 'gone') kernel.tell(registry, { type: 'LeaseEnded', incarnation: info.incarnation });
    else kernel.tell(registry, { type: 'Seen', info });
  });
  bus.onState((state) => void kernel.tell(frontend, { type: 'Broker', up: state === 'up' }));
  await watch.ready;

  let facts: FrontendFacts | undefined;
  let routing: RouterFacts | undefined;
  let mailDepth = 0;
  const poll = setInterval(() => {
    kernel
      .ask<RouterMessage, RouterFacts>(router, (replyTo) => ({ type: 'Facts', replyTo }), factsMs)
      .then((next) => {
        routing = next;
      })
      .catch(() => {});
    kernel
      .ask<FrontendMessage, FrontendFacts>(frontend, (replyTo) => ({ type: 'Facts', replyTo }), factsMs)
      .then((next) => {
        facts = next;
      })
      .catch(() => {})
      // Looked at between two questions, which would count themselves.
      .finally(() => {
        mailDepth = kernel.depth(frontend);
      });
  }, factsMs);

  const tracing = await startTracing(config.telemetry.otlpUrl, 'dynact-gateway', logger);
  gateway = createGateway({
    models,
    submit: (request) => kernel.tell(frontend, request),
    status: () =>
      gatewayStatus({
        model: boot.model.id,
        brokerUp: bus.state === 'up',
        instances,
        loads,
        frontend: facts,
        router: routing,
        kv: views?.facts(),
      }),
    listen: { server: boot.listener as unknown as Server },
    log: logger,
    limits,
    allowedHosts: list(config.http.allowedHosts),
    allowedOrigins: list(config.http.allowedOrigins),
    tracing,
  });
  const http = gateway;
  const info: InstanceInfo = {
    component: 'gateway',
    instance: boot.instance,
    incarnation,
    node: boot.node,
    host: hostname(),
    pid: process.pid,
    draining: false,
  };
  const announcement = announce(bus, info);
  await http.listen();
  host.onEnd(async () => {
    clearInterval(poll);
    await http.stop(0);
    await within(
      kernel.ask<JournalMessage, { readonly type: 'Done' }>(journal, (done) => ({ type: 'Finish', done }), journalMs),
      journalMs,
    );
    await announcement.withdraw();
    for (const source of [...frames, watch]) source.stop();
    views?.stop();
  });

  const route = routeAnswers({ kernel, router, preprocessor, gateway: incarnation, model: boot.model.id, blockTokens });
  const tree = host.tree({
    async drain(deadlineMs) {
      announcement.update({ ...info, draining: true });
      // The frontend goes on: what still comes in comes from clients that could not know yet.
      await http.stop(deadlineMs);
    },
    facts: () => ({
      inFlight: http.inFlight,
      served: facts?.ended ?? 0,
      migrations: facts?.migrations ?? 0,
      queued: routing?.queued ?? 0,
      ...keptOut(routing),
      mailDepth,
      deadLetters: kernel.counters.deadLetters,
      outbox: host.post.outbox.messages,
    }),
  });
  return { ...tree, route };
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
