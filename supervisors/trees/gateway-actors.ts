/**
 * The actors of a gateway and what joins them to the bus: router, journal, frontend and registry. Nothing here knows of HTTP or of the
 * process around it, so the simulator runs the same.
 */
import {
  costConfig,
  type FrontendFacts,
  type FrontendMessage,
  type FrontendPorts,
  type JournalMessage,
  type Kernel,
  type Ref,
  type RegistryMessage,
  type RouterFacts,
  type RouterMessage,
  recorded,
  type Tape,
} from '../../actors/index.js';
import { hashToHex } from '../../gpu/index.js';
import {
  type Announcement,
  address,
  announce,
  type Body,
  type Bus,
  deadLetter,
  type InstanceInfo,
  listenFrames,
  openJournal,
  type PostOffice,
  watchInstances,
} from '../../transport/index.js';
import type { ResolvedConfig } from '../config-schema.js';
import { followSettings, type LiveSettings } from '../live-settings.js';
import { type KvViewFacts, openKvViews } from './kv-views.js';
import { openRouteTape } from './route-tape.js';
import { disaggOf, queueOf, sessionsOf, tuningOf } from './router-settings.js';

/** The last record of the journal may take this long. */
const journalMs = 1_000;
/** What other routers have placed is waited for so long before the first request is let in. */
const inStepMs = 250;
const attempts = 4;
/** However often a worker failed: by then a probe a minute costs nobody much. */
const longestInhibitionMs = 60_000;
/** A worker that dies leaves its slots' requests behind at once; a fleet that goes on dying is asked at this rate. */
const retries = { burst: 1_024, perSecond: 64 };
/** Requests one gateway holds at most: each costs a socket and a few kilobytes. */
const maxRequests = 16_384;

export interface GatewayParts {
  readonly bus: Bus;
  /** What the kernel's actors send leaves through it. */
  readonly post: Pick<PostOffice, 'outbox'>;
  readonly kernel: Kernel;
  readonly info: InstanceInfo;
  readonly config: Pick<ResolvedConfig, 'routing' | 'disagg' | 'deadlines' | 'nats' | 'tape'>;
  /** Tokens of a KV block, as prompts are hashed by. */
  readonly blockTokens: number;
  readonly ports: Pick<FrontendPorts, 'preprocessor' | 'detokenizers' | 'summary'>;
  /** Where the lives of its actors are written down; absent: nowhere. */
  readonly tape?: Tape | undefined;
  /** For what an operator should know and no actor says. */
  readonly warn: (facts: Readonly<Record<string, unknown>>, message: string) => void;
}

export interface GatewayActors {
  readonly router: Ref<RouterMessage>;
  readonly frontend: Ref<FrontendMessage>;
  /** The end of any is the end of the gateway. */
  readonly essential: readonly Ref<never>[];
  /** Whoever is there now, and what the workers among them last said of their load, by incarnation. */
  readonly instances: () => readonly InstanceInfo[];
  readonly loads: ReadonlyMap<string, Body<'Load'>>;
  readonly kv: () => KvViewFacts | undefined;
  /** Those that are changed while it runs. */
  readonly settings: LiveSettings;
  readonly depth: () => number;
  routerFacts(timeoutMs: number): Promise<RouterFacts>;
  frontendFacts(timeoutMs: number): Promise<FrontendFacts>;
  /** Workers and other gateways learn of it; until `drain` says that it goes. */
  announce(): void;
  drain(): void;
  /** The last record of the journal, then out of the registry; hears nothing more. The actors live on. */
  leave(): Promise<void>;
}

export async function startGatewayActors(parts: GatewayParts): Promise<GatewayActors> {
  const { bus, post, kernel, info, config, blockTokens, ports, warn } = parts;
  const { incarnation } = info;
  let instances: readonly InstanceInfo[] = [];
  const loads = new Map<string, Body<'Load'>>();

  const { mode, inhibitMs, kvIndexBytes, kvEvents, approximateMs, assumeMs } = config.routing;
  const routes = config.tape.level === 'off' ? undefined : openRouteTape(bus, incarnation, warn);
  const router = kernel.spawn(
    recorded(
      parts.tape,
      'router',
      {
        config: {
          gateway: incarnation,
          mode,
          blockTokens,
          cost: costConfig(config.routing),
          caches: { maxBytes: kvIndexBytes, assumeMs: kvEvents ? assumeMs : approximateMs, reports: kvEvents },
          queue: queueOf(config.routing),
          tuning: tuningOf(config.routing),
          ...sessionsOf(config.routing),
          disagg: disaggOf(config.disagg),
          inhibition: { firstMs: inhibitMs, longestMs: longestInhibitionMs },
        },
      },
      { tape: routes },
    ),
    address('gateway', incarnation, 'router'),
  );
  const views =
    mode === 'kv' && kvEvents
      ? openKvViews(
          bus,
          blockTokens,
          (worker, rank, ops) => void kernel.tell(router, { type: 'KvChange', incarnation: worker, rank, ops }),
          warn,
        )
      : undefined;
  const journal = kernel.spawn(
    recorded(
      parts.tape,
      'journal',
      { config: { gateway: incarnation, graceMs: config.nats.leaseMs } },
      { journal: openJournal(bus) },
    ),
    address('gateway', incarnation, 'journal'),
  );
  const here = address('gateway', incarnation, 'frontend');
  const frontend: Ref<FrontendMessage> = kernel.spawn(
    recorded(
      parts.tape,
      'frontend',
      {
        config: {
          gateway: incarnation,
          ...config.deadlines,
          attempts,
          maxRequests,
          retries,
          hashBlockTokens: mode === 'kv' ? blockTokens : 0,
        },
        router,
      },
      {
        ...ports,
        poison(id, model, prompt, detail) {
          const letter = { code: 'POISON_PROMPT', subject: here, seq: 0, attempt: 0, bytes: new Uint8Array(0) };
          deadLetter(bus, 'gateway', { ...letter, detail: `${id} ${model} prompt ${hashToHex(prompt)}: ${detail}` });
        },
        broken(id, attempt, error) {
          const letter = { code: 'NET_HANDLER', subject: here, seq: 0, attempt, bytes: new Uint8Array(0) };
          deadLetter(bus, 'gateway', { ...letter, detail: `${id}: ${error.message}` });
        },
        summary(summary) {
          ports.summary(summary);
          const {
            id: req,
            outcome,
            code,
            attempts,
            promptTokens,
            completionTokens,
            queueMs,
            ttftMs,
            totalMs,
          } = summary;
          const end = { req, outcome, code, attempts, promptTokens, completionTokens, queueMs, ttftMs, totalMs };
          kernel.tell(journal, { type: 'Ended', end });
        },
        accepted: (req, { model, prompt }, label) =>
          void kernel.tell(journal, { type: 'Accepted', entry: { req, model, promptTokens: prompt.length, label } }),
      },
    ),
    here,
  );
  const registry: Ref<RegistryMessage> = kernel.spawn(
    recorded(
      parts.tape,
      'registry',
      { router, frontend, limits: { silentMs: config.routing.silentMs, stuckMs: config.routing.stuckMs } },
      {
        changed(live) {
          instances = live;
          // In the turn in which the router hears of it: nothing comes of a worker after its end.
          views?.follow(live);
          const known = new Set(live.map((each) => each.incarnation));
          for (const worker of loads.keys()) if (!known.has(worker)) loads.delete(worker);
        },
      },
    ),
    address('gateway', incarnation, 'registry'),
  );

  const gatewayGone = (gone: string) => {
    kernel.tell(journal, { type: 'GatewayGone', incarnation: gone });
    kernel.tell(router, { type: 'PeerGone', incarnation: gone });
  };
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
    listenFrames(bus, 'replica', here, {
      message(replica) {
        if (replica.type === 'Replica') kernel.tell(router, replica);
      },
    }),
    listenFrames(bus, 'down', here, {
      message(down) {
        kernel.tell(registry, down as RegistryMessage);
        if (down.type === 'Down' && down.to.startsWith('gateway.')) gatewayGone(down.body.incarnation);
      },
    }),
  ];
  const watch = await watchInstances(bus, ({ kind, info: other }) => {
    if (other.component === 'gateway') {
      if (kind === 'gone') gatewayGone(other.incarnation);
      else {
        kernel.tell(journal, { type: 'GatewaySeen', incarnation: other.incarnation });
        kernel.tell(router, { type: 'PeerUp', incarnation: other.incarnation });
      }
    }
    if (kind === 'gone') kernel.tell(registry, { type: 'LeaseEnded', incarnation: other.incarnation });
    else kernel.tell(registry, { type: 'Seen', info: other });
  });
  // One that stores nothing is as good as none: nobody can be given work.
  const broker = () => void kernel.tell(frontend, { type: 'Broker', up: bus.state === 'up' && !post.outbox.mute });
  bus.onState(broker);
  post.outbox.onMute((mute) => {
    warn({}, mute ? 'the broker stores nothing: its disk may be full' : 'the broker stores again');
    broker();
  });
  await watch.ready;
  const settings = await followSettings(
    bus,
    config,
    ({ routing }) => void kernel.tell(router, { type: 'Tune', tuning: tuningOf(routing) }),
    { keep: true, warn },
  );
  // Late is no reason not to start: until then, loads are what workers report.
  await kernel
    .ask<RouterMessage, { readonly type: 'InStep' }>(router, (replyTo) => ({ type: 'WhenInStep', replyTo }), inStepMs)
    .catch(() => {});

  let announcement: Announcement | undefined;
  return {
    router,
    frontend,
    essential: [router, journal, frontend, registry],
    instances: () => instances,
    loads,
    kv: () => views?.facts(),
    settings,
    depth: () => kernel.depth(frontend),
    routerFacts: (timeoutMs) =>
      kernel.ask<RouterMessage, RouterFacts>(router, (replyTo) => ({ type: 'Facts', replyTo }), timeoutMs),
    frontendFacts: (timeoutMs) =>
      kernel.ask<FrontendMessage, FrontendFacts>(frontend, (replyTo) => ({ type: 'Facts', replyTo }), timeoutMs),
    announce() {
      announcement ??= announce(bus, info);
    },
    drain: () => announcement?.update({ ...info, draining: true }),
    async leave() {
      // A journal that does not answer must not keep the gateway.
      await kernel
        .ask<JournalMessage, { readonly type: 'Done' }>(journal, (done) => ({ type: 'Finish', done }), journalMs)
        .catch(() => {});
      await announcement?.withdraw();
      for (const source of [...frames, watch, settings]) source.stop();
      views?.stop();
      routes?.stop();
    },
  };
}

/** 0 turns a threshold off. */
