/** POST /v1/chat/completions and /v1/completions. */
import { randomUUID } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Api } from '../../actors/index.js';
import { Collector } from '../collector.js';
import { gatewayError } from '../errors.js';
import { Exchange, type ExchangeContext } from '../exchange.js';
import { HttpFault } from '../http-faults.js';
import { joinStreams, whenEnded } from '../joined-stream.js';
import type { GatewayLimits } from '../limits.js';
import { shapeOf } from '../request-schema.js';
import { headerHints } from '../routing-hints.js';
import { SseStream, type StreamContext } from '../sse-stream.js';
import { type Tracing, validTraceparent } from '../tracing.js';

export interface GenerationContext extends ExchangeContext, StreamContext {
  readonly limits: GatewayLimits;
  readonly tracing: Tracing;
  readonly stopping: () => boolean;
  /** The drain deadline has passed. Before it even a late request is served: its client had no time to learn. */
  readonly refusing: () => boolean;
  nextTicket(): number;
}

export function generationRoutes(app: FastifyInstance, context: GenerationContext): void {
  app.post('/v1/chat/completions', (request, reply) => generate('chat', request, reply, context));
  app.post('/v1/completions', (request, reply) => generate('completion', request, reply, context));
}

function generate(api: Api, request: FastifyRequest, reply: FastifyReply, context: GenerationContext): void {
  if (request.body === undefined) {
    const typed = request.headers['content-type'] !== undefined;
    throw new HttpFault(gatewayError(typed ? 'GWY_BODY_EMPTY' : 'GWY_MEDIA_TYPE'));
  }
  if (context.refusing()) throw new HttpFault(gatewayError('GWY_STOPPING'));
  const shape = shapeOf(api, request.body, context.limits.choices);
  if ('status' in shape) throw new HttpFault(shape);
  const hints = headerHints(request.headers);
  if (!hints.ok) throw new HttpFault(hints.error);
  reply.hijack();
  const parent = validTraceparent(request.headers.traceparent);
  const span = context.tracing.start(`POST ${api}`, parent);
  const trace = span?.traceparent ?? parent;
  const exchange = new Exchange(reply.raw, api, request.id, context, span);
  const answer = shape.stream ? new SseStream(exchange, context, shape.includeUsage) : new Collector(exchange, context);
  exchange.answeredBy(answer);
  const count = shape.bodies.length;
  const streams = count === 1 ? [answer] : joinStreams(answer, count);
  for (const [index, body] of shape.bodies.entries()) {
    const stream = streams[index];
    if (stream === undefined || exchange.ended) return;
    const ticket = context.nextTicket();
    exchange.ticket(ticket);
    const submitted = context.submit({
      type: 'Submit',
      api,
      body,
      stream: whenEnded(stream, () => exchange.ticketDone(ticket)),
      ticket,
      label: request.id,
      hints: hints.value,
      ...(trace === undefined ? {} : { trace }),
    });
    if (!submitted) {
      exchange.ticketDone(ticket);
      answer.fail(gatewayError('GWY_BUSY'));
      return;
    }
  }
}

const sane = /^[A-Za-z0-9._:/+=@-]{1,128}$/;

/** A client's own name for its request if it is fit for logs and headers, else a fresh one. Need not be unique. */
export function requestLabel(header: unknown): string {
  return typeof header === 'string' && sane.test(header) ? header : `req_${randomUUID().replaceAll('-', '')}`;
}
