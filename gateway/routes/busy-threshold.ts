/**
 * GET and POST /busy_threshold as Dynamo has them: from when on workers get no new requests. For operators, so from this machine
 * alone; what is set holds for every gateway of the deployment at once.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { excerpt, gatewayError } from '../errors.js';
import { HttpFault } from '../http-faults.js';
import { isRecord } from '../json.js';
import type { ModelRegistry } from '../models.js';

/** Undefined: off. */
export interface BusyThresholdValues {
  readonly decodeBlocks: number | undefined;
  readonly prefillTokens: number | undefined;
  readonly prefillTokensFrac: number | undefined;
}

export interface BusyThresholdControl {
  get(): BusyThresholdValues;
  /** Absent: as it is. Undefined: off. Resolves when the broker has stored them; rejects with the broker's reason. */
  set(values: Partial<BusyThresholdValues>): Promise<void>;
}

const fields = [
  ['active_decode_blocks_threshold', 'decodeBlocks', 'a number from 0 to 1, or null', 1, false],
  ['active_prefill_tokens_threshold', 'prefillTokens', 'an integer of at least 1, or null', 1e9, true],
  ['active_prefill_tokens_threshold_frac', 'prefillTokensFrac', 'a number above 0, or null', 1e6, false],
] as const;

export function busyThresholdRoutes(app: FastifyInstance, models: ModelRegistry, control: BusyThresholdControl): void {
  const shown = (model: string, values: BusyThresholdValues) => ({
    model,
    ...Object.fromEntries(fields.map(([field, key]) => [field, values[key] ?? null])),
  });
  app.get('/busy_threshold', (request) => {
    fromHere(request);
    return { thresholds: models.list().map(({ id }) => shown(id, control.get())) };
  });
  app.post('/busy_threshold', async (request) => {
    fromHere(request);
    const { body } = request;
    if (!isRecord(body)) throw new HttpFault(gatewayError('GWY_BODY_SHAPE'));
    const { model } = body;
    if (typeof model !== 'string') {
      throw new HttpFault(gatewayError('GWY_BAD_VALUE', ["'model' is required: the id of a model."], 'model'));
    }
    if (models.get(model) === undefined) {
      throw new HttpFault(gatewayError('GWY_MODEL_UNKNOWN', [excerpt(model)], 'model'));
    }
    const values = valuesOf(body);
    if (Object.keys(values).length > 0) {
      try {
        await control.set(values);
      } catch {
        throw new HttpFault(gatewayError('GWY_SETTINGS'));
      }
    }
    return shown(model, { ...control.get(), ...values });
  });
}

function valuesOf(body: Record<string, unknown>): Partial<BusyThresholdValues> {
  const values: Partial<Record<keyof BusyThresholdValues, number | undefined>> = {};
  for (const [field, key, expects, most, whole] of fields) {
    const value = body[field];
    if (value === undefined) continue;
    const valid = typeof value === 'number' && value > 0 && value <= most && (!whole || Number.isSafeInteger(value));
    if (value !== null && !valid) {
      throw new HttpFault(gatewayError('GWY_BAD_VALUE', [`'${field}' must be ${expects}.`], field));
    }
    values[key] = value === null ? undefined : (value as number);
  }
  return values;
}

function fromHere({ socket }: FastifyRequest): void {
  const from = socket.remoteAddress ?? '';
  const here = from === '::1' || from.startsWith('127.') || from.startsWith('::ffff:127.');
  if (!here) throw new HttpFault(gatewayError('GWY_NOT_LOCAL'));
}
