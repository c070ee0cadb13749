/** Everything that goes wrong before a request reaches a handler, as OpenAI error bodies. */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import type { Logger } from 'pino';
import type { RequestError } from '../actors/index.js';
import { errorBody, gatewayError } from './errors.js';
import { writeError } from './exchange.js';
import type { GatewayLimits } from './limits.js';
import { surfaceOf } from './surface.js';

/** Thrown by hooks and parsers; carries the answer. */
export class HttpFault extends Error {
  readonly answer: RequestError;
  constructor(answer: RequestError) {
    super(answer.message);
    this.answer = answer;
  }
}

interface FaultContext {
  readonly limits: GatewayLimits;
  readonly log: Logger;
  refused(status: number, code: string): void;
}

export function answerFault(
  error: FastifyError | HttpFault | Error,
  request: FastifyRequest,
  reply: FastifyReply,
  context: FaultContext,
): void {
  const answer = asAnswer(error, context);
  context.refused(answer.status, answer.code ?? answer.type);
  reply.hijack();
  const body = surfaceOf(request.url).error(answer, request.id);
  if (request.raw.complete) writeError(reply.raw, answer, reply.elapsedTime, body);
  else refuseUpload(request, reply.raw, answer, body);
}

function asAnswer(error: FastifyError | HttpFault | Error, context: FaultContext): RequestError {
  if (error instanceof HttpFault) return error.answer;
  const { code, statusCode } = error as FastifyError;
  if (code === 'FST_ERR_CTP_BODY_TOO_LARGE') return gatewayError('GWY_BODY_LARGE', [context.limits.bodyBytes]);
  if (code === 'FST_ERR_CTP_INVALID_MEDIA_TYPE') return gatewayError('GWY_MEDIA_TYPE');
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) return gatewayError('GWY_HTTP');
  if (code === 'ECONNRESET') return gatewayError('GWY_HTTP');
  context.log.error({ err: error }, 'a handler threw');
  return gatewayError('GWY_INTERNAL');
}

/** How much of a refused upload is read and thrown away, so that its sender gets to see the answer. */
const lingerBytes = 4 * 1024 * 1024;
const lingerMs = 1000;

/**
 * Answers while the body is still arriving, then ends the connection. Closing at once would reset it, and many clients
 * would report the reset instead of the answer: so a bounded part of the rest is discarded first, and one that sends more
 * is held up for as long as a busy sender may take to look at what has come.
 */
function refuseUpload(request: FastifyRequest, raw: ServerResponse, answer: RequestError, body: string): void {
  if (raw.headersSent || raw.destroyed) return;
  raw.writeHead(answer.status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
    'x-should-retry': 'false',
  });
  raw.write(body);
  let discarded = 0;
  const close = () => {
    clearTimeout(timer);
    raw.end(() => request.raw.destroy());
  };
  const timer = setTimeout(close, lingerMs);
  request.raw.removeAllListeners('data');
  request.raw.on('data', (chunk: Buffer) => {
    discarded += chunk.length;
    if (discarded > lingerBytes) request.raw.pause();
  });
  request.raw.once('end', close);
  request.raw.once('error', close);
  raw.once('close', () => clearTimeout(timer));
  request.raw.resume();
}

/** The parser refused: there is no request and no response object, only the socket. */
export function answerParserFault(error: NodeJS.ErrnoException, socket: Socket, context: FaultContext): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const answer =
    error.code === 'HPE_HEADER_OVERFLOW'
      ? gatewayError('GWY_HEADERS_LARGE')
      : error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? gatewayError('GWY_REQUEST_SLOW')
        : gatewayError('GWY_HTTP');
  context.refused(answer.status, answer.code ?? answer.type);
  const body = errorBody(answer);
  const head = [
    `HTTP/1.1 ${answer.status} ${reasons[answer.status] ?? 'Bad Request'}`,
    'content-type: application/json; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
    'x-should-retry: false',
  ];
  // Bytes of an answer under way must not be mixed with these; node then has a response in `_httpMessage`.
  const busy = (socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage;
  if (busy?.headersSent === true) {
    socket.destroy();
    return;
  }
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`);
}

const reasons: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  408: 'Request Timeout',
  431: 'Request Header Fields Too Large',
};
