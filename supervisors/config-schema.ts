/**
 * Every setting, once: its type, unit, default and the reason for the default. File keys, environment names, flags, help
 * texts and the static type all derive from here. The environment name of `http.port` is DYNACT_HTTP_PORT.
 */
import Type, { type Static, type TSchema } from 'typebox';

/** What a leaf says beside its JSON Schema. */
export interface Leaf {
  readonly description: string;
  readonly default: unknown;
  /** Long flag of `dynact up`, e.g. `--port`. */
  readonly flag?: string;
  /** Names that Dynamo's users know; the value means the same, in a unit `times` larger than ours. */
  readonly alias?: readonly { readonly name: string; readonly times?: number }[];
  /** `dynact config set` changes it while everything runs. */
  readonly live?: true;
  /** Printed as `***`. */
  readonly secret?: boolean;
}

const count = (min: number, max: number, leaf: Leaf & { default: number }) =>
  Type.Integer({ minimum: min, maximum: max, ...leaf });
const weight = (leaf: Leaf & { default: number }) => Type.Number({ minimum: 0, maximum: 1e6, ...leaf });
const text = (leaf: Leaf & { default: string }, pattern?: string) =>
  Type.String({ maxLength: 4096, ...(pattern === undefined ? {} : { pattern }), ...leaf });
const flagged = (leaf: Leaf & { default: boolean }) => Type.Boolean({ ...leaf });
const oneOf = <const T extends string>(values: readonly T[], leaf: Leaf & { default: T }) =>
  Type.Enum([...values] as [T, ...T[]], { ...leaf });
const group = <T extends Record<string, TSchema>>(properties: T) =>
  Type.Object(properties, { additionalProperties: false });

const queuePolicies = ['fcfs', 'lcfs', 'wspt'] as const;
/** See `QueueClass` of the router's queue. */
const QueueClassSchema = Type.Object(
  {
    name: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
    policy: Type.Optional(Type.Enum([...queuePolicies])),
    quantum: Type.Optional(Type.Integer({ minimum: 1, maximum: 1e9 })),
    family: Type.Optional(Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' })),
    from: Type.Optional(Type.Integer({ minimum: 0, maximum: 1e9 })),
    to: Type.Optional(Type.Integer({ minimum: 1, maximum: 1e9 })),
    requestsPerWorker: Type.Optional(Type.Integer({ minimum: 0, maximum: 1e9 })),
    promptTokensPerWorker: Type.Optional(Type.Integer({ minimum: 0, maximum: 1e12 })),
    cachedTokensPerWorker: Type.Optional(Type.Integer({ minimum: 0, maximum: 1e12 })),
  },
  { additionalProperties: false },
);

const KiB = 1024;
const MiB = 1024 * KiB;
const hour = 3_600_000;

export const ConfigSchema = group({
  topology: group({
    prefill: count(0, 256, {
      default: 1,
      flag: '--prefill',
      description: 'prefill workers; 0 = decode workers prefill for themselves',
    }),
    decode: count(0, 256, { default: 1, flag: '--decode', description: 'decode workers' }),
    gateway: count(0, 64, { default: 1, flag: '--gateway', description: 'gateway processes, sharing one port' }),
  }),
  http: group({
    host: text(
      {
        default: '127.0.0.1',
        flag: '--host',
        alias: [{ name: 'DYN_HTTP_HOST' }],
        description: 'address to listen on; loopback by default, because the API asks for no key',
      },
      '^.+$',
    ),
    port: count(0, 65_535, {
      default: 8000,
      flag: '--port',
      alias: [{ name: 'DYN_HTTP_PORT' }],
      description: 'port to listen on; 0 = any free one',
    }),
    bodyBytes: count(KiB, 1024 * MiB, {
      default: 8 * MiB,
      alias: [{ name: 'DYN_HTTP_BODY_LIMIT_MB', times: MiB }],
      description: 'largest request body; 8 MiB holds a prompt of a million tokens',
    }),
    keepAliveMs: count(0, hour, {
      default: 15_000,
      alias: [{ name: 'DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS' }],
      description:
        'a comment on a silent event stream this often, below the 30 s at which many proxies give up; 0 = never',
    }),
    allowedOrigins: text({
      default: '',
      description: 'comma-separated origins of web pages that may call the API; none by default',
    }),
    allowedHosts: text({
      default: '',
      description: 'comma-separated Host names accepted beside the loopback ones and the listening address',
    }),
  }),
  model: group({
    id: text(
      {
        default: 'smollm2-135m-instruct',
        flag: '--model',
        description: 'model id, or the path of a GGUF file',
      },
      '^.+$',
    ),
    contextTokens: count(64, 1_048_576, {
      default: 4096,
      flag: '--context-tokens',
      alias: [{ name: 'DYN_CONTEXT_WINDOW' }],
      description: 'most tokens of one sequence, prompt and answer; never more than the model was trained for',
    }),
  }),
  engine: group({
    kind: oneOf(['llama', 'mock'], { default: 'llama', flag: '--engine', description: 'what computes the tokens' }),
    gpu: oneOf(['cpu', 'cuda'], { default: 'cpu', flag: '--gpu', description: 'where the llama engine computes' }),
    slots: count(1, 256, {
      default: 8,
      flag: '--slots',
      description: 'sequences a decode worker runs at once; each holds KV for contextTokens (90 MB with the defaults)',
    }),
    prefillSlots: count(1, 256, {
      default: 4,
      description: 'prompts a prefill worker holds at once; it computes one after the other, so a few keep it busy',
    }),
    taints: text(
      {
        default: '',
        flag: '--taints',
        description:
          'comma-separated labels of this node’s workers; a request may ask for workers that have some of them',
      },
      '^$|^[A-Za-z0-9._:/=-]{1,128}(,[A-Za-z0-9._:/=-]{1,128}){0,31}$',
    ),
    threads: count(0, 256, {
      default: 0,
      flag: '--threads',
      description: 'compute threads per worker; 0 = the cores divided by the workers, at least 1',
    }),
    prefillChunkTokens: count(64, 512, {
      default: 256,
      description: 'prompt tokens per engine step, a multiple of 64; smaller = other requests wait less',
    }),
    kvCacheBytes: count(0, 1024 * 1024 * MiB, {
      default: 256 * MiB,
      flag: '--kv-cache-bytes',
      description: 'host memory for KV of finished prompts, per worker; 0 = no prefix cache',
    }),
  }),
  mock: group({
    speedup: Type.Number({
      minimum: 0,
      maximum: 1e6,
      default: 1,
      flag: '--speedup',
      description: 'divides the mock engine’s times; 0 = as fast as possible',
    }),
    stepMs: Type.Number({
      minimum: 0,
      maximum: 60_000,
      default: 0,
      description: 'fixed time of a decode step; 0 = the timing formula',
    }),
    blocks: count(1, 10_000_000, { default: 16_384, description: 'KV blocks of the mock engine (Dynamo’s default)' }),
  }),
  routing: group({
    mode: oneOf(['kv', 'round-robin', 'random', 'power-of-two', 'least-loaded', 'direct'], {
      default: 'kv',
      flag: '--routing',
      alias: [{ name: 'DYN_ROUTER_MODE' }],
      description:
        'how the router picks among the workers that could serve a request; kv = by cached prefix and load, direct = the request says',
    }),
    kvIndexBytes: count(MiB, 1024 * 1024 * MiB, {
      default: 256 * MiB,
      description: 'memory for what is known of the workers’ caches, per gateway: 16 to 40 bytes a block; mode kv',
    }),
    kvEvents: flagged({
      default: true,
      alias: [{ name: 'DYN_ROUTER_USE_KV_EVENTS' }],
      description:
        'mode kv: workers report what their caches hold; false = the router goes by its own dispatches alone, for approximateMs',
    }),
    approximateMs: count(1, 24 * hour, {
      default: 120_000,
      alias: [{ name: 'DYN_ROUTER_TTL_SECS', times: 1000 }],
      description: 'without kvEvents a prompt counts as cached where it was sent for this long',
    }),
    assumeMs: count(0, hour, {
      default: 10_000,
      alias: [{ name: 'DYN_ROUTER_PREDICTED_TTL_SECS', times: 1000 }],
      description:
        'a prompt counts as cached where it was sent for this long, before the worker says so: siblings land together',
    }),
    overlapScoreCredit: weight({
      default: 1,
      alias: [{ name: 'DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT' }],
      description: 'what a cached block is worth against one that is computed; 0 = the cache does not matter',
    }),
    hostCacheHitWeight: weight({
      default: 0.75,
      alias: [{ name: 'DYN_ROUTER_HOST_CACHE_HIT_WEIGHT' }],
      description: 'what a block cached in host memory is worth against one on the device',
    }),
    diskCacheHitWeight: weight({
      default: 0.25,
      alias: [{ name: 'DYN_ROUTER_DISK_CACHE_HIT_WEIGHT' }],
      description: 'the same for a block on disk',
    }),
    overlapScoreCreditDecay: weight({
      default: 0,
      description: 'how fast that fades as a worker’s backlog grows beyond the smallest one',
    }),
    prefillLoadScale: weight({
      default: 1,
      alias: [{ name: 'DYN_ROUTER_PREFILL_LOAD_SCALE' }],
      description: 'what a prompt block to compute counts against a block of a running request',
    }),
    decodeActiveRequestWeight: weight({
      default: 0,
      description: 'blocks that a running request counts for beside its own',
    }),
    routerTemperature: weight({
      default: 0,
      alias: [{ name: 'DYN_ROUTER_TEMPERATURE' }],
      description: '0 = always the cheapest worker; above, others too, the more the higher',
    }),
    queueLength: count(0, 1_000_000, {
      default: 1024,
      description: 'requests that may wait for a worker, per gateway; one more is told 529',
    }),
    decodeQueueLength: count(0, 1_000_000, {
      default: 0,
      description: 'of those, requests that wait for a decode worker; 0 = as many as queueLength allows',
    }),
    prefillQueueLength: count(0, 1_000_000, {
      default: 0,
      description: 'the same for requests that wait for a prefill worker while a decode worker has room',
    }),
    queuePolicy: oneOf(queuePolicies, {
      default: 'fcfs',
      alias: [{ name: 'DYN_ROUTER_QUEUE_POLICY' }],
      description: 'who goes first: fcfs = who came first, lcfs = who came last, wspt = the shortest uncached prompt',
    }),
    classes: Type.Array(QueueClassSchema, {
      default: [] as Static<typeof QueueClassSchema>[],
      maxItems: 16,
      description:
        'policy classes that share what gets free as their quanta are; a JSON list in the environment; empty = one class for all',
    }),
    requestLimit: count(0, 1_000_000, {
      default: 0,
      live: true,
      alias: [{ name: 'DYN_ENGINE_REQUEST_LIMIT' }],
      description: 'requests a worker is given at a time, however many slots it has; 0 = as many as it has slots',
    }),
    activeDecodeBlocksThreshold: Type.Number({
      minimum: 0,
      maximum: 1,
      default: 0,
      live: true,
      description: 'a decode worker whose requests hold more than this share of its KV gets no new ones; 0 = off',
    }),
    activePrefillTokensThreshold: count(0, 1_000_000_000, {
      default: 0,
      live: true,
      description: 'a worker with more prompt tokens than this to compute gets no new requests; 0 = off',
    }),
    activePrefillTokensThresholdFrac: Type.Number({
      minimum: 0,
      maximum: 1e6,
      default: 0,
      live: true,
      description: 'the same, in batches of the worker; 0 = off',
    }),
    sessionTtlMs: count(0, 31_536_000_000, {
      default: 0,
      flag: '--session-ttl-ms',
      alias: [{ name: 'DYN_ROUTER_SESSION_AFFINITY_TTL_SECS', times: 1000 }],
      description: 'a session goes where it was served before, until it is not used for this long; 0 = anywhere',
    }),
    sessionLimit: count(1, 10_000_000, {
      default: 100_000,
      description: 'sessions a gateway remembers; the one that was used longest ago is forgotten',
    }),
    silentMs: count(500, hour, {
      default: 1500,
      description:
        'a worker that says nothing for longer gets no requests, and those it has go elsewhere; it beats every 250 ms',
    }),
    stuckMs: count(500, hour, {
      default: 5000,
      description:
        'the same for an engine that takes no step while it has work; at least three times its longest step, and silentMs for the mock',
    }),
    inhibitMs: count(0, hour, {
      default: 5000,
      alias: [{ name: 'DYN_RUNTIME_INHIBITED_DURATION_SECS', times: 1000 }],
      description:
        'a worker that failed is out of routing this long, twice as long each time, at most a minute; 0 = never',
    }),
  }),
  disagg: group({
    flow: oneOf(['prefill-first', 'decode-first'], {
      default: 'prefill-first',
      flag: '--flow',
      description:
        'who brings a prompt to a prefill worker: the router, or the decode worker by a queue that prefill workers take from',
    }),
    policy: oneOf(['always', 'isl_bounding', 'prefill_load', 'isl_or_load'], {
      default: 'always',
      flag: '--disagg',
      description:
        'prefill-first: which prompts go to a prefill worker: all, long ones, while one has time, or both of these',
    }),
    maxLocalTokens: count(0, 10_000_000, {
      default: 2048,
      description:
        'isl_*: with fewer prompt tokens than this to compute, and less than maxLocalShare, a prompt is short',
    }),
    maxLocalShare: Type.Number({
      minimum: 0,
      maximum: 1,
      default: 0.7,
      description: 'isl_*: share of the prompt that is not in the decode worker’s cache',
    }),
    prefillBusyTokens: count(0, 10_000_000, {
      default: 8192,
      description:
        '*_load: a prefill worker with more prompt tokens than this to compute has no time; 0 = it always has',
    }),
    prefillBusyShare: Type.Number({
      minimum: 0,
      maximum: 1_000,
      default: 0,
      description: '*_load: nor has one with more than so many batches of them; 0 = however many',
    }),
    decodeBusyShare: Type.Number({
      minimum: 0,
      maximum: 1,
      default: 0,
      description: 'a decode worker whose KV is fuller than this computes no prompts; 0 = however full it is',
    }),
    maxLocalPrefillLength: count(0, 10_000_000, {
      default: 1000,
      live: true,
      description: 'decode-first: prompts with no more tokens to compute stay with the decode worker',
    }),
    maxPrefillQueueSize: count(0, 1_000_000, {
      default: 2,
      live: true,
      description: 'decode-first: so do all others while so many wait in the queue',
    }),
  }),
  deadlines: group({
    acceptMs: count(1, hour, { default: 2000, description: 'a worker says Accepted or refuses; it only takes a look' }),
    queueMs: count(1, hour, { default: 60_000, description: 'waiting for a worker' }),
    firstTokenMs: count(1, hour, {
      default: 60_000,
      description: 'from dispatch to the first token; progress renews it',
    }),
    betweenTokensMs: count(1, hour, { default: 15_000, description: 'between two tokens of one answer' }),
    totalMs: count(1, 24 * hour, { default: 600_000, description: 'whole request, as the client sees it' }),
    brokerOutageMs: count(0, hour, {
      default: 90_000,
      description: 'deadlines pause this long while the broker is away: a restart with a large store takes a minute',
    }),
  }),
  nats: group({
    url: text(
      {
        default: '',
        flag: '--nats',
        alias: [{ name: 'NATS_SERVER' }],
        description: 'broker to use, e.g. nats://10.0.0.5:4222; empty = dynact runs its own',
      },
      '^$|^(nats|tls)://[^/\\s]+$',
    ),
    user: text({ default: '', description: 'user name at an external broker' }),
    password: text({ default: '', secret: true, description: 'password at an external broker' }),
    replicas: Type.Enum([1, 3], { default: 1, description: 'copies of each stream: 1, or 3 on a cluster' }),
    sizeFactor: Type.Number({
      minimum: 0.001,
      maximum: 1000,
      default: 1,
      description: 'scales the size limits of all streams; 1 = about 1.3 GB at most',
    }),
    leaseMs: count(1000, hour, {
      default: 6000,
      description: 'an instance that does not renew its entry for this long leaves the registry',
    }),
    silentMs: count(250, hour, {
      default: 20_000,
      description: 'the embedded server is restarted after this long without an answer; a shorter freeze is let thaw',
    }),
  }),
  tape: group({
    level: oneOf(['off', 'metadata', 'full'], {
      default: 'metadata',
      flag: '--tape',
      description: 'what is kept on disk for replay: nothing, all but prompts and tokens, or all',
    }),
  }),
  node: group({
    name: text({ default: '', description: 'name of this node; empty = the host’s name' }, '^[A-Za-z0-9_-]{0,32}$'),
    stateDir: text(
      { default: './.dynact', flag: '--state-dir', description: 'folder of this node: lock, store, socket' },
      '^.+$',
    ),
    namespace: text(
      {
        default: 'dynact',
        flag: '--namespace',
        alias: [{ name: 'DYN_NAMESPACE' }],
        description: 'separates deployments that share a broker',
      },
      '^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$',
    ),
    startMs: count(1000, hour, {
      default: 60_000,
      description: 'a process that is not ready after this long is ended',
    }),
    silentMs: count(1000, hour, {
      default: 5000,
      description: 'a worker that says nothing for this long is killed; far above the longest garbage collection',
    }),
    gatewaySilentMs: count(1000, hour, {
      default: 30_000,
      description: 'the same for a gateway: it may thaw, and its clients are lost with it',
    }),
    stuckMs: count(1000, hour, {
      default: 10_000,
      description:
        'a worker whose engine takes no step for this long with work queued is killed; above the longest step',
    }),
    drainMs: count(0, hour, {
      default: 10_000,
      flag: '--drain-ms',
      alias: [{ name: 'DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS', times: 1000 }],
      description: 'requests in flight may finish this long after a stop was asked for',
    }),
    pinCpus: flagged({ default: false, description: 'pin each worker to cores of its own (needs taskset)' }),
  }),
  restart: group({
    intensity: count(0, 1000, {
      default: 30,
      description: 'restarts within periodMs before the node gives up; one crash loop at backoffMaxMs stays below it',
    }),
    periodMs: count(1000, hour, { default: 60_000, description: 'window of intensity' }),
    backoffMinMs: count(1, hour, {
      default: 100,
      description: 'wait before the first restart; doubles each time. Short: one crash must not cost a request',
    }),
    backoffMaxMs: count(1, hour, {
      default: 10_000,
      description: 'longest wait between two restarts of a process that keeps failing',
    }),
  }),
  log: group({
    level: oneOf(['debug', 'info', 'warn', 'error', 'silent'], {
      default: 'info',
      flag: '--log-level',
      description: 'least severe line that is written',
    }),
    format: oneOf(['auto', 'json', 'text'], {
      default: 'auto',
      flag: '--log-format',
      description: 'auto = text on a terminal, else one JSON object per line',
    }),
  }),
  faults: group({
    enabled: flagged({
      default: false,
      description:
        'lets the control socket make actors fail; for the fault matrix and specs, never where people are served',
    }),
    links: flagged({
      default: false,
      description:
        'with enabled: each process reaches the broker through a proxy of the node, which can cut or slow it',
    }),
  }),
  telemetry: group({
    otlpUrl: text({
      default: '',
      alias: [{ name: 'OTEL_EXPORTER_OTLP_ENDPOINT' }],
      description: 'OTLP/HTTP collector for traces; empty = no traces',
    }),
  }),
});

type Frozen<T> = { readonly [K in keyof T]: T[K] extends object ? Frozen<T[K]> : T[K] };
/** Every value set; units are in the names. */
export type ResolvedConfig = Frozen<Static<typeof ConfigSchema>>;

/** A setting as `group.key`, its schema and its names. */
export interface Setting {
  readonly key: string;
  readonly env: string;
  readonly schema: TSchema & Leaf;
}

const screaming = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase();

/** All settings, in the order of the schema. */
export const settings: readonly Setting[] = Object.entries(ConfigSchema.properties).flatMap(([name, members]) =>
  Object.entries(members.properties as unknown as Record<string, TSchema & Leaf>).map(([key, schema]) => ({
    key: `${name}.${key}`,
    env: `DYNACT_${screaming(name)}_${screaming(key)}`,
    schema,
  })),
);
