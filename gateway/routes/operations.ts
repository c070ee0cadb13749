/** What operators and orchestrators ask: /live, /ready, /health, /metrics. */
import type { FastifyInstance } from 'fastify';
import type { GatewayMetrics } from '../gateway-metrics.js';
import type { Sample } from '../metrics.js';
import type { ModelRegistry } from '../models.js';

export interface GatewayStatus {
  /** Requests can be served now. */
  readonly ready: boolean;
  /** Why not, in a few words; '' when ready. */
  readonly reason: string;
  readonly instances: readonly {
    readonly component: string;
    readonly instance: string;
    readonly model?: string;
    readonly draining: boolean;
  }[];
  /** Metrics of the actors behind this gateway, read at scrape time. */
  readonly samples: readonly Sample[];
}

export interface OperationsContext {
  readonly models: ModelRegistry;
  readonly metrics: GatewayMetrics;
  readonly stopping: () => boolean;
  status(): GatewayStatus;
}

/** While draining, liveness stays good and readiness goes: the load balancer leaves, nobody kills the process. */
export function operationRoutes(app: FastifyInstance, context: OperationsContext): void {
  app.get('/live', () => ({ status: 'live' }));
  app.get('/ready', (_request, reply) => {
    const { ready, reason } = current(context);
    return reply.code(ready ? 200 : 503).send(ready ? { status: 'ready' } : { status: 'not_ready', reason });
  });
  app.get('/health', (_request, reply) => {
    const { ready, reason, instances } = current(context);
    const models = context.models.list().map(({ id }) => id);
    return reply
      .code(ready ? 200 : 503)
      .send({ status: ready ? 'healthy' : 'not_ready', ...(ready ? {} : { reason }), models, instances });
  });
  app.get('/metrics', (_request, reply) =>
    reply.type('text/plain; version=0.0.4; charset=utf-8').send(context.metrics.text(context.status().samples)),
  );
}

function current(context: OperationsContext): GatewayStatus {
  const status = context.status();
  return context.stopping() ? { ...status, ready: false, reason: 'draining' } : status;
}
