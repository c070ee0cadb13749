/**
 * The HTTP face of dynact: OpenAI's API over `submit`. It knows nothing of actors, workers or the broker; what it tells and
 * hears is in actors/frontend/ports.ts.
 */
import { createServer, type Server } from 'node:http';
import type { AddressInfo, Server as NetServer } from 'node:net';
import Fastify, { type FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { FrontendRequest, RequestSummary } from '../actors/index.js';
import { trackConnections } from './connections.js';
import { gatewayError } from './errors.js';
import type { Exchange } from './exchange.js';
import { createGatewayMetrics } from './gateway-metrics.js';
import { GoneList } from './gone-list.js';
import { createGuard } from './guards.js';
import { answerFault, answerParserFault, HttpFault } from './http-faults.js';
import { parseBody } from './json.js';
import { defaultLimits, type GatewayLimits } from './limits.js';
import type { ModelRegistry } from './models.js';
import { createPreprocessor } from './preprocessor.js';
import { type BusyThresholdControl, busyThresholdRoutes } from './routes/busy-threshold.js';
import { type GenerationContext, generationRoutes, requestLabel } from './routes/generation.js';
import { messageRoutes } from './routes/messages.js';
import { modelRoutes } from './routes/models.js';
import { type GatewayStatus, operationRoutes } from './routes/operations.js';
import { StreamHub } from './stream-hub.js';
import { noTracing, type Tracing } from './tracing.js';

/** An address of one's own, or a socket that somebody else listens on already (several gateways share a port). */
export type Listen = { readonly host: string; readonly port: number } | { readonly server: NetServer };

export interface GatewayOptions {
  readonly models: ModelRegistry;
  /** Tells the frontend. False = its mailbox is full: the client gets 503. Must not throw. */
  submit(request: FrontendRequest): boolean;
  status(): GatewayStatus;
  /** Absent: there is no /busy_threshold. */
  readonly busyThresholds?: BusyThresholdControl;
  readonly listen: Listen;
  readonly log: Logger;
  readonly limits?: Partial<GatewayLimits>;
  /** Host names accepted beside loopback names and IP addresses; `*` = all. */
  readonly allowedHosts?: readonly string[];
  /** Origins of web pages that may use the API; their browsers get CORS headers. */
  readonly allowedOrigins?: readonly string[];
  readonly tracing?: Tracing;
}

export interface Gateway {
  /** Resolves with the URL once connections are accepted. Rejects with the system's error, e.g. EADDRINUSE. */
  listen(): Promise<string>;
  /** Counts a finished request; for the frontend's summaries. */
  observe(summary: RequestSummary): void;
  /** Requests being answered. */
  readonly inFlight: number;
  /**
   * Unready, accepts no more, lets running answers finish. Those that are left after `deadlineMs` end with an error event;
   * then every connection is closed. Idempotent.
   */
  stop(deadlineMs: number): Promise<void>;
}

const routes: readonly (readonly [RegExp, string])[] = [
  [/^\/v1\/((chat\/)?completions|messages(\/count_tokens)?)\/?$/, 'POST'],
  [/^\/v1\/models(\/.*)?$/, 'GET, HEAD'],
  [/^\/(live|ready|health|metrics)\/?$/, 'GET, HEAD'],
  [/^\/busy_threshold\/?$/, 'GET, HEAD, POST'],
];

/** While it takes leave a gateway is not ready, but serves: probes have this long to see it, clients to be told. */
const leaveMs = 500;

export function createGateway(options: GatewayOptions): Gateway {
  const { models, log } = options;
  const limits = { ...defaultLimits, ...options.limits };
  const tracing = options.tracing ?? noTracing;
  const metrics = createGatewayMetrics();
  const hub = new StreamHub(limits.keepAliveMs, (error) => log.error({ err: error }, 'an event stream threw'));
  const gone = new GoneList(options.submit);
  const server = createServer({
    // Small events must not wait for the client's acknowledgement.
    noDelay: true,
    keepAlive: true,
    // Checked by the guard, with a body.
    requireHostHeader: false,
    maxHeaderSize: 16 * 1024,
    headersTimeout: limits.headersMs,
    requestTimeout: limits.uploadMs,
    keepAliveTimeout: limits.idleConnectionMs,
    connectionsCheckingInterval: 1000,
  });
  server.maxConnections = limits.connections;
  const connections = trackConnections(server);
  const open = new Set<Exchange>();
  let refusing = false;
  let tickets = 0;
  let stopping: Promise<void> | undefined;
  const context: GenerationContext = {
    models,
    metrics,
    log,
    hub,
    limits,
    tracing,
    open,
    unsentBytes: limits.unsentBytes,
    submit: options.submit,
    gone: (ticket) => gone.tell(ticket),
    stopping: () => stopping !== undefined,
    refusing: () => refusing,
    nextTicket: () => ++tickets,
  };
  const app = createApp(server, context, options);

  return {
    async listen() {
      await app.ready();
      const address = await startListening(server, options.listen);
      metrics.start();
      return address;
    },
    observe: (summary) => metrics.summary(summary),
    get inFlight() {
      return open.size;
    },
    stop(deadlineMs) {
      stopping ??= drain(deadlineMs);
      return stopping;
    },
  };

  async function drain(deadlineMs: number): Promise<void> {
    const timer = setTimeout(() => {
      refusing = true;
      for (const exchange of [...open]) exchange.abandon(gatewayError('GWY_STOPPING'));
      // One more turn, so that the error events leave first.
      setTimeout(() => server.closeAllConnections(), 50);
    }, deadlineMs);
    await connections.leave(Math.min(leaveMs, deadlineMs / 2));
    clearTimeout(timer);
    hub.stop();
    gone.stop();
    metrics.stop();
    await app.close();
    await tracing.stop();
  }
}

function createApp(server: Server, context: GenerationContext, options: GatewayOptions): FastifyInstance {
  const { limits, log, metrics } = context;
  const guard = createGuard(options.allowedHosts ?? [], options.allowedOrigins ?? []);
  const faults = { limits, log, refused: metrics.refused };
  const app = Fastify({
    serverFactory: (handler) => server.on('request', handler),
    bodyLimit: limits.bodyBytes,
    requestIdHeader: false,
    genReqId: (raw) => requestLabel(raw.headers['x-request-id']),
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 512 },
    clientErrorHandler: (error, socket) => answerParserFault(error, socket, faults),
    frameworkErrors: (_error, request, reply) => {
      reply.raw.setHeader('x-request-id', request.id);
      answerFault(new HttpFault(gatewayError('GWY_HTTP')), request, reply, faults);
    },
  });
  server.on('checkExpectation', (request, response) => {
    const error = gatewayError('GWY_EXPECTATION');
    response.writeHead(error.status, { 'content-type': 'application/json', connection: 'close' });
    response.end(JSON.stringify({ error }));
    request.resume();
  });

  app.addHook('onRequest', (request, reply, next) => {
    reply.raw.setHeader('x-request-id', request.id);
    const refusal = guard.check(request.headers);
    if (refusal !== undefined) throw new HttpFault(refusal);
    const cors = guard.cors(request.headers);
    for (const [name, value] of Object.entries(cors ?? {})) reply.raw.setHeader(name, value);
    if (context.stopping()) reply.raw.setHeader('connection', 'close');
    next();
  });

  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, bytes, done) => {
    const type = request.headers['content-type'] ?? '';
    const charset = /;\s*charset\s*=\s*"?([^";\s]+)/i.exec(type)?.[1]?.toLowerCase() ?? 'utf-8';
    const encoding = request.headers['content-encoding'] ?? 'identity';
    if ((charset !== 'utf-8' && charset !== 'utf8') || encoding !== 'identity') {
      done(new HttpFault(gatewayError('GWY_MEDIA_TYPE')));
      return;
    }
    const parsed = parseBody(bytes as Buffer, limits.bodyDepth);
    if (parsed.ok) done(null, parsed.body);
    else done(new HttpFault(parsed.error));
  });

  app.setErrorHandler((error: Error, request, reply) => answerFault(error, request, reply, faults));
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?', 1)[0] ?? '';
    const methods = routes.find(([pattern]) => pattern.test(path))?.[1];
    const shownPath = path.slice(0, 200);
    if (methods === undefined) throw new HttpFault(gatewayError('GWY_ROUTE', [request.method, shownPath]));
    if (request.method === 'OPTIONS' && guard.cors(request.headers) !== undefined) {
      return reply.code(204).headers(preflight(methods)).send();
    }
    reply.raw.setHeader('allow', methods);
    throw new HttpFault(gatewayError('GWY_METHOD', [request.method, shownPath]));
  });

  generationRoutes(app, context);
  const preprocessor = createPreprocessor(context.models, limits, (error) => log.error({ err: error }, 'not prepared'));
  messageRoutes(app, context, preprocessor);
  modelRoutes(app, context.models);
  if (options.busyThresholds !== undefined) busyThresholdRoutes(app, context.models, options.busyThresholds);
  operationRoutes(app, {
    models: context.models,
    metrics,
    stopping: context.stopping,
    status: () => options.status(),
  });
  return app;
}

const preflight = (methods: string) => ({
  'access-control-allow-methods': methods,
  'access-control-allow-headers':
    'authorization, content-type, x-request-id, anthropic-version, anthropic-beta, x-api-key, traceparent, openai-organization, openai-project, x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout',
  'access-control-max-age': '600',
});

function startListening(server: Server, listen: Listen): Promise<string> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    const ready = () => {
      server.off('error', reject);
      const address = server.address() as AddressInfo;
      const host = address.family === 'IPv6' ? `[${address.address}]` : address.address;
      resolve(`http://${host}:${address.port}`);
    };
    // A socket of another process keeps listening there when this server closes.
    if ('server' in listen) server.listen(listen.server, ready);
    else server.listen(listen.port, listen.host, ready);
  });
}
