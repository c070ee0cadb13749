/** POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send them. */
import type { FastifyInstance } from 'fastify';
import type { Preprocessor } from '../../actors/index.js';
import { HttpFault } from '../http-faults.js';
import { MessageStream, WholeMessage } from '../messages/answer.js';
import { chatBodyOf } from '../messages/body.js';
import { surfaces } from '../surface.js';
import { admit, answerWith, type GenerationContext } from './generation.js';

export function messageRoutes(app: FastifyInstance, context: GenerationContext, preprocessor: Preprocessor): void {
  app.post('/v1/messages', (request, reply) => {
    const chat = chatBodyOf(admit(request, context));
    if (!chat.ok) throw new HttpFault(chat.error);
    reply.raw.setHeader('request-id', request.id);
    const stream = chat.value.stream === true;
    answerWith(surfaces.messages, request, reply, context, [chat.value], (exchange) =>
      stream ? new MessageStream(exchange, context) : new WholeMessage(exchange, context),
    );
  });
  app.post('/v1/messages/count_tokens', (request, reply) => {
    const chat = chatBodyOf(admit(request, context), true);
    if (!chat.ok) throw new HttpFault(chat.error);
    const prepared = preprocessor.prepare('chat', chat.value);
    if (!prepared.ok) throw new HttpFault(prepared.error);
    return reply.send({ input_tokens: prepared.prepared.prompt.length });
  });
}
