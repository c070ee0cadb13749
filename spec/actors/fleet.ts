/**
 * A whole fleet in one process and virtual time: the real frontend, router and worker actors, mock engines that hand over
 * through memory, and a post that delivers at once. Specs drive it by `run`; the same seed gives the same interleaving.
 */
import {
  beaconActor,
  type ClientStream,
  costConfig,
  createKernel,
  type DecodeFirstConfig,
  type DisaggRouting,
  type DryRunAnswer,
  decodeActor,
  decodeFirstConfig,
  disaggRouting,
  type FrontendConfig,
  type FrontendFacts,
  type FrontendMessage,
  frontendActor,
  type GpuMessage,
  gpuActor,
  type JobSource,
  oneClass,
  type Prepared,
  prefillActor,
  type Ref,
  type RegistryMessage,
  type RequestError,
  type RequestSummary,
  type RouteRecord,
  type RouterConfig,
  type RouterFacts,
  type RouterMessage,
  type RouterTuning,
  type RouteTape,
  registryActor,
  routerActor,
  type SelectionMode,
  seededDispatcher,
  seededRandom,
  type TokenLogprob,
  type Usage,
  virtualWorld,
  type WorkerFacts,
  type WorkerMessage,
} from '../../actors/index.js';
import { createMockEngine, type Engine, type MockEngineOptions } from '../../gpu/index.js';
import {
  type Address,
  address,
  type Body,
  type Envelope,
  type Head,
  type InstanceInfo,
  type MessageType,
  parts,
} from '../../transport/index.js';
import { createJobQueue } from './job-queue.js';

/** What a client saw. */
export interface Seen {
  begun: number;
  /** Token ids by choice: the fleet's detokenizer writes them as words. */
  readonly texts: string[];
  readonly logprobs: TokenLogprob[][];
  readonly finishes: (string | undefined)[];
  usage: Usage | undefined;
  /** Of a dry run. */
  answer: DryRunAnswer | undefined;
  error: RequestError | undefined;
  /** How often `end` or `fail` was called: exactly once (promise P1). */
  ends: number;
}

export interface FleetOptions {
  readonly prefill: number;
  readonly decode: number;
  /** @default 1 */
  readonly gateways?: number;
  readonly seed?: number;
  readonly frontend?: Partial<FrontendConfig>;
  readonly engine?: Partial<MockEngineOptions>;
  readonly queueLimit?: number;
  readonly queue?: RouterConfig['queue'];
  readonly tuning?: RouterTuning;
  readonly sessions?: NonNullable<RouterConfig['sessions']>;
  /** @default 'kv' */
  readonly mode?: SelectionMode;
  /** Which prompts go to a prefill worker, and by whom they are brought there. */
  readonly disagg?: Partial<DisaggRouting>;
  /** Of the decode-first flow; by default all but the shortest prompts go to the queue. */
  readonly limits?: Partial<DecodeFirstConfig>;
  readonly assumeMs?: number;
  /** Of what routers know of the workers' caches. @default 1 MiB */
  readonly indexBytes?: number;
  /** Where the routers write their decisions down. */
  readonly tape?: RouteTape;
  /** False: what workers say of their caches never arrives. */
  readonly cacheReports?: boolean;
  /** How long an answer to a query is on its way. */
  readonly queries?: { readonly delayMs: number };
}

interface Message {
  readonly from: Address;
  readonly to: Address;
  readonly type: MessageType;
  readonly body: unknown;
  readonly head: Head;
}

/** Return false to lose the message. */
export type Filter = (message: Message) => boolean;

export type Fleet = ReturnType<typeof createFleet>;

export function createFleet(options: FleetOptions) {
  const seed = options.seed ?? 1;
  const dispatcher = seededDispatcher(seededRandom(seed));
  const boxes = new Map<string, (envelope: Envelope) => void>();
  const commands: string[] = [];
  let filter: Filter = () => true;
  let stepFilter: (worker: string) => boolean = () => true;
  let replicaFilter: (from: string, to: string) => boolean = () => false;
  /** Frozen processes, and what waits for their thaw. */
  const frozen = new Map<string, (() => void)[]>();
  const wedged = new Set<string>();
  let serial = 0;
  let queries = 0;

  const deliver = (message: Message) => {
    if (!filter(message)) return;
    // A frozen process says nothing; what it is told waits for it.
    const waiting = frozen.get(parts(message.from).incarnation) ?? frozen.get(parts(message.to).incarnation);
    if (waiting !== undefined) {
      if (message.type !== 'Load') waiting.push(() => deliver(message));
      return;
    }
    const { component, incarnation } = parts(message.to);
    const envelope = {
      v: 1,
      id: String(++serial),
      seq: serial,
      ts: 0,
      ...message.head,
      ...message,
    } as unknown as Envelope;
    if (message.type === 'Load') {
      for (const registry of registries()) kernel.tell(registry, envelope as RegistryMessage);
    } else if (message.type === 'Replica') {
      // The sender hears itself, as on a broker; `loseReplica` is asked for each of the others.
      for (const { id, router: to } of gateways.values()) {
        const lost = id !== parts(message.from).incarnation && replicaFilter(parts(message.from).incarnation, id);
        if (!lost) kernel.tell(to, envelope as RouterMessage);
      }
    } else boxes.get(`${component}.${incarnation}`)?.(envelope);
  };

  const world = virtualWorld({
    seed,
    post: {
      command(from, to, type, body, head) {
        commands.push(type);
        deliver({ from, to, type, body, head });
        return Promise.resolve();
      },
      frame: (from, to, type, body, head) => deliver({ from, to, type, body, head }),
      step(gateway, frame) {
        const to = gateways.get(gateway);
        if (to === undefined || !stepFilter(frame.worker)) return;
        const said = () => void kernel.tell(to.frontend, { type: 'Frame', frame });
        const waiting = frozen.get(frame.worker);
        if (waiting === undefined) said();
        else waiting.push(said);
      },
      query<T extends MessageType, R extends MessageType>(
        _from: Address,
        to: Address,
        _type: T,
        body: Body<T>,
      ): Promise<Body<R>> {
        queries++;
        const worker = workers.get(parts(to).incarnation);
        if (!worker) return Promise.reject(Object.assign(new Error('gone'), { code: 'NET_NO_RESPONDER' }));
        if (frozen.has(parts(to).incarnation)) return new Promise(() => {});
        const asked = kernel.ask<WorkerMessage, Body<'Resynced'>>(
          worker.ref,
          (replyTo) => ({ type: 'ResyncAsk', body: body as Body<'Resync'>, replyTo }),
          1_000,
        );
        const delayed = asked.then(
          (answer) => new Promise((resolve) => world.setTimer(options.queries?.delayMs ?? 0, () => resolve(answer))),
        );
        return delayed as unknown as Promise<Body<R>>;
      },
    },
  });
  const kernel = createKernel({ world, dispatcher });
  const disagg = disaggRouting(options.disagg);
  const jobs = createJobQueue({
    now: world.now,
    setTimer: world.setTimer,
    ackWaitMs: 5_000,
    deliver: (taker, job) => tellWorker(taker, job),
  });
  /** Now, or when it thaws. */
  function whenAwake(incarnation: string, run: () => void): void {
    const waiting = frozen.get(incarnation);
    if (waiting === undefined) run();
    else waiting.push(run);
  }
  function tellWorker(incarnation: string, message: WorkerMessage): void {
    whenAwake(incarnation, () => {
      const worker = workers.get(incarnation);
      if (worker !== undefined) kernel.tell(worker.ref, message);
    });
  }
  /** The prefill queue as this taker uses it while it is awake. */
  function jobsFor(taker: string): JobSource {
    const source = jobs.source(taker);
    return {
      want: (count) => whenAwake(taker, () => source.want(count)),
      done: (ticket) => whenAwake(taker, () => source.done(ticket)),
      working: (held) => whenAwake(taker, () => source.working(held)),
      giveBack: (ticket) => whenAwake(taker, () => source.giveBack(ticket)),
    };
  }
  // gateways
  interface GatewaySide {
    readonly id: string;
    readonly router: Ref<RouterMessage>;
    readonly frontend: Ref<FrontendMessage>;
    readonly registry: Ref<RegistryMessage>;
  }
  const gateways = new Map<string, GatewaySide>();
  const summaries: RequestSummary[] = [];
  const poisoned: string[] = [];

  function addGateway(id: string): GatewaySide {
    const router = kernel.spawn(
      routerActor({
        gateway: id,
        mode: options.mode ?? 'kv',
        blockTokens: 64,
        cost: costConfig(),
        caches: { maxBytes: options.indexBytes ?? 1024 * 1024, assumeMs: options.assumeMs ?? 10_000 },
        queue: options.queue ?? oneClass(options.queueLimit ?? 1_000),
        ...(options.tuning === undefined ? {} : { tuning: options.tuning }),
        ...(options.sessions === undefined ? {} : { sessions: options.sessions }),
        disagg,
        inhibition: { firstMs: 5_000, longestMs: 60_000 },
        tape: options.tape,
      }),
      address('gateway', id, 'router'),
    ) as Ref<RouterMessage>;
    const config: FrontendConfig = {
      gateway: id,
      acceptMs: 2_000,
      queueMs: 30_000,
      firstTokenMs: 30_000,
      betweenTokensMs: 10_000,
      totalMs: 600_000,
      attempts: 4,
      retries: { burst: 1_000, perSecond: 100 },
      maxRequests: 10_000,
      hashBlockTokens: 64,
      brokerOutageMs: 90_000,
      ...options.frontend,
    };
    const frontend: Ref<FrontendMessage> = kernel.spawn(
      frontendActor(
        config,
        {
          preprocessor: { prepare: (_api, body) => ({ ok: true, prepared: body as Prepared }) },
          detokenizers: { open: () => ({ push: (token) => `${token} `, end: () => '' }) },
          summary: (summary) => summaries.push(summary),
          poison: (requestId) => poisoned.push(requestId),
        },
        router,
      ),
      address('gateway', id, 'frontend'),
    );
    const registry: Ref<RegistryMessage> = kernel.spawn(
      registryActor(router, frontend, { silentMs: 1_500, stuckMs: 5_000 }, () => {}),
      address('gateway', id, 'registry'),
    );
    const side: GatewaySide = { id, router, frontend, registry };
    boxes.set(`gateway.${id}`, (envelope) => kernel.tell(frontend, envelope as FrontendMessage));
    for (const { info } of workers.values()) kernel.tell(registry, { type: 'Seen', info });
    for (const other of gateways.values()) {
      kernel.tell(other.router, { type: 'PeerUp', incarnation: id });
      kernel.tell(router, { type: 'PeerUp', incarnation: other.id });
    }
    gateways.set(id, side);
    return side;
  }

  /** Ends a gateway as kill -9 does; the others are told at once. */
  function killGateway(id: string): void {
    const side = gateways.get(id);
    if (side === undefined) throw new Error(`no gateway ${id}`);
    gateways.delete(id);
    boxes.delete(`gateway.${id}`);
    for (const ref of [side.registry, side.frontend, side.router]) void kernel.kill(ref);
    for (const other of gateways.values()) kernel.tell(other.router, { type: 'PeerGone', incarnation: id });
  }

  // workers
  interface Worker {
    readonly ref: Ref<WorkerMessage>;
    readonly gpu: Ref<GpuMessage>;
    readonly engine: Engine;
    readonly info: InstanceInfo;
    readonly refs: Ref<never>[];
  }
  const workers = new Map<string, Worker>();
  const [first] = Array.from({ length: options.gateways ?? 1 }, (_, i) => addGateway(`gateway-${i}-a`));
  const { router, frontend } = first as GatewaySide;
  const registries = () => [...gateways.values()].map(({ registry }) => registry);

  function addWorker(component: 'prefill' | 'decode', incarnation: string): void {
    let yields = 0;
    const unlessWedged = (run: () => void) => () => {
      if (!wedged.has(incarnation)) run();
    };
    const engine = createMockEngine({
      owner: incarnation,
      speedup: 10,
      slots: 8,
      ...options.engine,
      clock: {
        now: world.now,
        setTimer: (ms, run) => world.setTimer(ms, unlessWedged(run)),
        yield: (run) => {
          yields++;
          return world.setTimer(yields % 2 === 0 ? 0 : 0.001, unlessWedged(run));
        },
      },
    });
    const gpu: Ref<GpuMessage> = kernel.spawn(
      gpuActor(engine, (self) => ({
        step(step) {
          kernel.tell(self, { type: 'EngineStepped', step });
          // As a follower of its reports would say it, without the way there.
          if (step.cache !== undefined && options.cacheReports !== false)
            for (const gateway of gateways.values())
              kernel.tell(gateway.router, { type: 'KvChange', incarnation, rank: 0, ops: step.cache });
        },
        died: (error) => void kernel.tell(self, { type: 'EngineDied', error }),
      })),
      address(component, incarnation, 'gpu'),
    );
    const workerConfig = {
      leg: component,
      incarnation,
      model: 'mock',
      fingerprint: engine.card.fingerprint,
      kvType: engine.card.kvType,
      layout: engine.card.kvLayout,
      blockTokens: engine.card.blockTokens,
      slots: engine.limits.slots,
      maxJobs: 1_000,
      grantMs: 5_000,
      leaseMs: 10_000,
      keepMs: 30_000,
      ...(disagg.flow === 'decode-first' && {
        remotePrefill: decodeFirstConfig({ maxLocalPrefillLength: 100, maxPrefillQueueSize: 64, ...options.limits }),
      }),
    } as const;
    const source = disagg.flow === 'decode-first' ? jobsFor(incarnation) : undefined;
    const behaviour =
      component === 'prefill'
        ? prefillActor(workerConfig, gpu, () => engine.pool as NonNullable<Engine['pool']>, source)
        : decodeActor(workerConfig, gpu, jobs.queue, () => engine.pool);
    const ref: Ref<WorkerMessage> = kernel.spawn(behaviour, address(component, incarnation, 'worker'));
    const beacon = kernel.spawn(
      beaconActor(incarnation, engine.limits, gpu, ref, () => 0),
      address(component, incarnation, 'beacon'),
    );
    const info: InstanceInfo = {
      component,
      instance: incarnation.split('-', 2).join('-'),
      incarnation,
      node: 'n',
      host: 'h',
      pid: 1,
      draining: false,
      model: 'mock',
      engine: 'mock',
      fingerprint: engine.card.fingerprint,
      slots: engine.limits.slots,
      kvBlocks: engine.limits.kvBlocks,
      ...(options.engine?.batchTokens !== undefined && { batchTokens: options.engine.batchTokens }),
    };
    for (const [other, { info: its }] of workers) {
      if (its.component === component) continue;
      tellWorker(other, { type: 'PeerSeen', incarnation });
      kernel.tell(ref, { type: 'PeerSeen', incarnation: other });
    }
    workers.set(incarnation, { ref, gpu, engine, info, refs: [beacon, ref, gpu] });
    boxes.set(`${component}.${incarnation}`, (envelope) => kernel.tell(ref, envelope as WorkerMessage));
    for (const registry of registries()) kernel.tell(registry, { type: 'Seen', info });
  }

  /** Ends a worker as kill -9 does: not a word more from it. `known`: the node saw it and says so. */
  function killWorker(incarnation: string, known = true): void {
    const worker = workers.get(incarnation);
    if (!worker) throw new Error(`no worker ${incarnation}`);
    workers.delete(incarnation);
    boxes.delete(`${worker.info.component}.${incarnation}`);
    for (const ref of worker.refs) void kernel.kill(ref);
    void worker.engine.stop();
    jobs.leave(incarnation);
    if (known) for (const other of workers.keys()) tellWorker(other, { type: 'PeerGone', incarnation });
    const down = { type: 'Down', body: { incarnation, reason: 'killed' } } as RegistryMessage;
    if (known) for (const registry of registries()) kernel.tell(registry, down);
  }

  /** SIGSTOP: it says nothing and takes nothing until `thaw`. */
  function freeze(incarnation: string): void {
    frozen.set(incarnation, []);
  }

  function thaw(incarnation: string): void {
    const waiting = frozen.get(incarnation) ?? [];
    frozen.delete(incarnation);
    for (const deliverNow of waiting) deliverNow();
  }

  async function routerFacts(of: GatewaySide = first as GatewaySide): Promise<RouterFacts> {
    const asked = kernel.ask<RouterMessage, RouterFacts>(of.router, (replyTo) => ({ type: 'Facts', replyTo }), 1_000);
    dispatcher.drain();
    return asked;
  }

  async function explain(id: string): Promise<readonly RouteRecord[]> {
    const asked = kernel.ask<RouterMessage, { readonly records: readonly RouteRecord[] }>(
      router,
      (replyTo) => ({ type: 'Explain', id, replyTo }),
      1_000,
    );
    dispatcher.drain();
    return (await asked).records;
  }

  for (let i = 0; i < options.prefill; i++) addWorker('prefill', `prefill-${i}-a`);
  for (let i = 0; i < options.decode; i++) addWorker('decode', `decode-${i}-a`);

  let tickets = 0;
  function submit(body: Partial<Prepared> = {}, to = frontend): { readonly seen: Seen; readonly ticket: number } {
    const n = body.n ?? 1;
    const seen: Seen = {
      begun: 0,
      texts: Array(n).fill(''),
      logprobs: Array.from({ length: n }, () => []),
      finishes: Array(n).fill(undefined),
      usage: undefined,
      answer: undefined,
      error: undefined,
      ends: 0,
    };
    const stream: ClientStream = {
      begin: () => void seen.begun++,
      text: (choice, text, _tokens, logprobs) => {
        seen.texts[choice] += text;
        seen.logprobs[choice]?.push(...(logprobs ?? []));
      },
      finish: (choice, reason) => {
        seen.finishes[choice] = reason;
      },
      end: (usage, answer) => {
        seen.usage = usage;
        seen.answer = answer;
        seen.ends++;
      },
      fail: (error) => {
        seen.error = error;
        seen.ends++;
      },
    };
    const ticket = ++tickets;
    kernel.tell(to, { type: 'Submit', api: 'chat', body: prepared(body), stream, ticket, label: '' });
    return { seen, ticket };
  }

  /** Lets virtual time pass; native promises get their turn between timers. */
  async function run(ms: number, until: () => boolean = () => false): Promise<void> {
    const end = world.now() + ms;
    while (world.now() < end && !until()) {
      dispatcher.drain();
      await new Promise<void>((resolve) => setImmediate(resolve));
      dispatcher.drain();
      world.advance(Math.min(1, end - world.now()), () => dispatcher.drain());
    }
  }

  async function facts(of = frontend): Promise<FrontendFacts> {
    const asked = kernel.ask<FrontendMessage, FrontendFacts>(of, (replyTo) => ({ type: 'Facts', replyTo }), 1_000);
    dispatcher.drain();
    return asked;
  }

  async function workerFacts(incarnation: string): Promise<WorkerFacts> {
    const worker = workers.get(incarnation);
    if (!worker) throw new Error(`no worker ${incarnation}`);
    const asked = kernel.ask<WorkerMessage, WorkerFacts>(
      worker.ref,
      (replyTo) => ({ type: 'FactsAsk', replyTo }),
      1_000,
    );
    dispatcher.drain();
    return asked;
  }

  return {
    world,
    kernel,
    /** The prefill queue. */
    jobs,
    frontend,
    workers,
    commands,
    /** Questions asked so far. */
    queries: () => queries,
    summaries,
    /** Requests whose prompt was dead-lettered. */
    poisoned,
    gateways,
    addGateway,
    killGateway,
    /** True: this frame between two routers is lost. */
    loseReplica: (next: (from: string, to: string) => boolean) => {
      replicaFilter = next;
    },
    addWorker,
    killWorker,
    freeze,
    thaw,
    /** Its engine takes no further step, while the process lives. */
    wedge: (incarnation: string) => void wedged.add(incarnation),
    submit,
    run,
    facts,
    routerFacts,
    /** Why a request went where it went. */
    explain,
    workerFacts,
    /** As a setting that changes while it runs does it to each decode worker. */
    limitPrefills: (given: Partial<DecodeFirstConfig>) => {
      const limits = decodeFirstConfig(given);
      for (const [incarnation, { info }] of workers) {
        if (info.component === 'decode') tellWorker(incarnation, { type: 'PrefillLimits', limits });
      }
    },
    /** Sets thresholds of every router while it runs. */
    tune: (tuning: Partial<RouterTuning>) => {
      for (const each of gateways.values()) kernel.tell(each.router, { type: 'Tune', tuning });
    },
    /** `forgotten`: what it had in memory is gone when it is back. */
    broker: (up: boolean, forgotten = false) => {
      jobs.refuse(up ? undefined : 'NET_DOWN');
      if (forgotten) jobs.forget();
      if (up) for (const incarnation of workers.keys()) tellWorker(incarnation, { type: 'BrokerBack' });
      for (const gateway of gateways.values()) kernel.tell(gateway.frontend, { type: 'Broker', up });
    },
    redeliver: deliver,
    /** Who serves the oldest request now, as its last command tells; undefined before the router has chosen. */
    placement: (role: 'prefill' | 'decode') => {
      const last = world.posted.findLast(
        (item) => item.kind === 'command' && item.type !== 'Cancel' && parts(item.to).component === role,
      );
      return last?.kind === 'command' ? parts(last.to).incarnation : undefined;
    },
    gone: (ticket: number) => kernel.tell(frontend, { type: 'ClientGone', ticket }),
    lose: (next: Filter) => {
      filter = next;
    },
    loseSteps: (next: (worker: string) => boolean) => {
      stepFilter = next;
    },
    /** Nothing is held anywhere: no request, no job, no slot, no exported block. */
    async idle(): Promise<Record<string, number>> {
      let requests = 0;
      for (const gateway of gateways.values()) requests += (await facts(gateway.frontend)).inFlight;
      const held: Record<string, number> = { requests };
      for (const [incarnation, { engine }] of workers) {
        const { busySlots, waiting, exportedBlocks } = engine.load();
        held[incarnation] = (await workerFacts(incarnation)).jobs + busySlots + waiting + exportedBlocks;
      }
      return held;
    },
  };
}

let prompts = 0;
export function prepared(body: Partial<Prepared> = {}): Prepared {
  const from = ++prompts * 7;
  return {
    model: 'mock',
    prompt: Uint32Array.from({ length: 200 }, (_, i) => (from + i * 13) % 50_000),
    n: 1,
    sampling: {
      temperature: 1,
      topK: 0,
      topP: 1,
      minP: 0,
      frequencyPenalty: 0,
      presencePenalty: 0,
      repetitionPenalty: 1,
      logitBias: [],
      seed: 42,
    },
    maxTokens: 50,
    minTokens: 0,
    ignoreEos: false,
    logprobs: 0,
    stop: [],
    cacheSalt: '',
    ...body,
  };
}
