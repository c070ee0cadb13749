/** POST /v1/chat/completions and /v1/completions. */
import { randomUUID } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ClientStream } from '../../actors/index.js';
import { Collector } from '../collector.js';
import { gatewayError } from '../errors.js';
import { Exchange, type ExchangeContext } from '../exchange.js';
import { HttpFault } from '../http-faults.js';
import { joinStreams, whenEnded } from '../joined-stream.js';
import type { GatewayLimits } from '../limits.js';
import { shapeOf } from '../request-schema.js';
import { headerHints } from '../routing-hints.js';
import { SseStream, type StreamContext } from '../sse-stream.js';
import { type Surface, surfaces } from '../surface.js';
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
  app.post('/v1/chat/completions', (request, reply) => generate(surfaces.chat, request, reply, context));
  app.post('/v1/completions', (request, reply) => generate(surfaces.completion, request, reply, context));
}

function generate(surface: Surface, request: FastifyRequest, reply: FastifyReply, context: GenerationContext): void {
  const asked = admit(request, context);
  const shape = shapeOf(surface.api, asked, context.limits.choices);
  if ('status' in shape) throw new HttpFault(shape);
  const { bodies, stream, includeUsage } = shape;
  answerWith(surface, request, reply, context, bodies, (exchange) =>
    stream ? new SseStream(exchange, context, includeUsage) : new Collector(exchange, context),
  );
}

/** The body of a request that may be served. Throws HttpFault. */
export function admit(request: FastifyRequest, context: GenerationContext): unknown {
  if (request.body === undefined) {
    const typed = request.headers['content-type'] !== undefined;
    throw new HttpFault(gatewayError(typed ? 'GWY_BODY_EMPTY' : 'GWY_MEDIA_TYPE'));
  }
  if (context.refusing()) throw new HttpFault(gatewayError('GWY_STOPPING'));
  return request.body;
}

/** Submits each body, and answers with all of them together. Throws HttpFault before the response is taken over. */
export function answerWith(
  surface: Surface,
  request: FastifyRequest,
  reply: FastifyReply,
  context: GenerationContext,
  bodies: readonly unknown[],
  openAnswer: (exchange: Exchange) => ClientStream,
): void {
  const hints = headerHints(request.headers);
  if (!hints.ok) throw new HttpFault(hints.error);
  reply.hijack();
  const parent = validTraceparent(request.headers.traceparent);
  const span = context.tracing.start(`POST ${surface.name}`, parent);
  const trace = span?.traceparent ?? parent;
  const exchange = new Exchange(reply.raw, surface, request.id, context, span);
  const answer = openAnswer(exchange);
  exchange.answeredBy(answer);
  const streams = bodies.length === 1 ? [answer] : joinStreams(answer, bodies.length);
  for (const [index, body] of bodies.entries()) {
    const stream = streams[index];
    if (stream === undefined || exchange.ended) return;
    const ticket = context.nextTicket();
    exchange.ticket(ticket);
    const submitted = context.submit({
      type: 'Submit',
      api: surface.api,
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
