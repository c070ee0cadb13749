/** GET /v1/models and /v1/models/{id}; an id may hold slashes, raw or encoded. */
import type { FastifyInstance } from 'fastify';
import { excerpt, gatewayError } from '../errors.js';
import { HttpFault } from '../http-faults.js';
import type { ModelRegistry, ServedModel } from '../models.js';

const shown = (model: ServedModel) => ({
  id: model.id,
  object: 'model',
  created: model.created,
  owned_by: 'dynact',
  max_model_len: model.contextTokens,
  context_length: model.contextTokens,
});

export function modelRoutes(app: FastifyInstance, models: ModelRegistry): void {
  app.get('/v1/models', () => ({ object: 'list', data: models.list().map(shown) }));
  app.get<{ Params: { '*': string } }>('/v1/models/*', (request) => {
    const id = request.params['*'];
    if (id === '') return { object: 'list', data: models.list().map(shown) };
    const model = models.get(id);
    if (model === undefined) throw new HttpFault(gatewayError('GWY_MODEL_UNKNOWN', [excerpt(id)], 'model'));
    return shown(model);
  });
}
