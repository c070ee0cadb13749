/**
 * What a client asks of routing, in Dynamo's words: the body's `nvext`, headers, which count more, and `prompt_cache_key`, which names a
 * session where nothing else does. What has a meaning here is taken, hints without one are let pass, and whatever else would be left out
 * silently is refused.
 */
import type { IncomingHttpHeaders } from 'node:http';
import Type, { type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import type { RequestError, RouteWishes, RoutingHints } from '../actors/index.js';
import { excerpt, gatewayError } from './errors.js';
import { isRecord } from './json.js';

type Checked<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: RequestError };

const refused = (text: string, param: string): { readonly ok: false; readonly error: RequestError } => ({
  ok: false,
  error: gatewayError('GWY_BAD_VALUE', [text], param),
});

const name = Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' });
const key = Type.String({ pattern: '^[\\x21-\\x7e]{1,256}$' });
const taint = Type.String({ minLength: 1, maxLength: 128 });
const rank = Type.Integer({ minimum: 0, maximum: 65_535 });
const weight = Type.Number({ minimum: 0, maximum: 1e6 });

interface Field {
  readonly schema: TSchema;
  readonly expects: string;
}
type Fields = Readonly<Record<string, Field>>;

const worker: Field = { schema: name, expects: 'the name of a worker: its instance or its incarnation' };
const rankOf: Field = { schema: rank, expects: 'an integer of at least 0' };
const taints: Field = {
  schema: Type.Array(taint, { maxItems: 32 }),
  expects: 'an array of at most 32 taints, each of at most 128 characters',
};
const credit: Field = { schema: weight, expects: 'a number from 0 to 1000000' };
const int32: Field = {
  schema: Type.Integer({ minimum: -(2 ** 31), maximum: 2 ** 31 - 1 }),
  expects: 'an integer of 32 bits',
};
const uint32: Field = {
  schema: Type.Integer({ minimum: 0, maximum: 2 ** 32 - 1 }),
  expects: 'an integer of at least 0',
};
const anything: Field = { schema: Type.Unknown(), expects: 'anything' };
const group = { schema: Type.Record(Type.String(), Type.Unknown()), expects: 'an object' };

const nvextFields: Fields = {
  backend_instance_id: worker,
  decode_worker_id: worker,
  prefill_worker_id: worker,
  allowed_worker_ids: {
    schema: Type.Array(name, { minItems: 1, maxItems: 256 }),
    expects: 'an array of 1 to 256 names of workers',
  },
  dp_rank: rankOf,
  prefill_dp_rank: rankOf,
  cache_salt: {
    schema: Type.String({ minLength: 1, maxLength: 256 }),
    expects: 'a non-empty string of at most 256 characters',
  },
  annotations: { schema: Type.Array(Type.String(), { maxItems: 32 }), expects: 'an array of at most 32 strings' },
  agent_hints: group,
  routing_constraints: group,
  router_config_override: group,
};
const groups: Readonly<Record<string, Fields>> = {
  agent_hints: {
    priority: int32,
    strict_priority: uint32,
    osl: uint32,
    latency_sensitivity: anything,
    speculative_prefill: anything,
  },
  routing_constraints: {
    required_taints: taints,
    preferred_taints: {
      schema: Type.Record(taint, Type.Number({ minimum: -100, maximum: 100 }), { maxProperties: 32 }),
      expects: 'an object of at most 32 taints, each with a number from -100 to 100',
    },
  },
  router_config_override: {
    overlap_score_credit: credit,
    prefill_load_scale: credit,
    router_temperature: credit,
    shared_cache_multiplier: credit,
    track_prefill_tokens: { schema: Type.Boolean(), expects: 'true or false' },
    router_mode: {
      schema: Type.Enum(['kv', 'round-robin', 'random', 'power-of-two', 'least-loaded', 'direct']),
      expects: 'one of kv, round-robin, random, power-of-two, least-loaded, direct',
    },
  },
};

const compile = (fields: Fields) =>
  new Map(Object.entries(fields).map(([each, { schema, expects }]) => [each, { check: Compile(schema), expects }]));
const nvextChecks = compile(nvextFields);
const groupChecks = new Map(Object.entries(groups).map(([each, fields]) => [each, compile(fields)]));

/** Fields with values; null is as good as none. */
function fieldsOf(value: unknown, checks: ReturnType<typeof compile>, at: string): Checked<Record<string, unknown>> {
  if (!isRecord(value)) return refused(`'${at}' must be an object.`, at);
  const given = Object.entries(value).filter(([, each]) => each !== null && each !== undefined);
  for (const [field, each] of given) {
    const param = `${at}.${field}`;
    const known = checks.get(field);
    if (known === undefined) {
      const text = `${excerpt(param)} is not supported.`;
      return { ok: false, error: gatewayError('GWY_UNSUPPORTED', [text], param.slice(0, 128)) };
    }
    if (!known.check.Check(each)) return refused(`'${param}' must be ${known.expects}.`, param);
  }
  return { ok: true, value: Object.fromEntries(given) };
}

export interface BodyHints extends RoutingHints {
  /** Say where it would be served, and serve nothing. */
  readonly dryRun: boolean;
}

const without = <T extends object>(given: { readonly [K in keyof T]: T[K] | undefined }): Partial<T> =>
  Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as Partial<T>;

/** Of the body's `nvext`, unchecked; undefined or null: there are none. */
export function bodyHints(nvext: unknown, promptCacheKey: string | undefined): Checked<BodyHints> {
  const session = promptCacheKey === undefined ? {} : { session: promptCacheKey };
  if (nvext === undefined || nvext === null) return { ok: true, value: { wishes: session, dryRun: false } };
  const fields = fieldsOf(nvext, nvextChecks, 'nvext');
  if (!fields.ok) return fields;
  const inner: Record<string, Record<string, unknown>> = {};
  for (const [each, checks] of groupChecks) {
    const found = fieldsOf(fields.value[each] ?? {}, checks, `nvext.${each}`);
    if (!found.ok) return found;
    inner[each] = found.value;
  }
  const annotations = (fields.value.annotations ?? []) as string[];
  const unknown = annotations.find((each) => !isDryRun(each));
  if (unknown !== undefined) {
    const text = `The annotation ${excerpt(unknown)} is not supported.`;
    return { ok: false, error: gatewayError('GWY_UNSUPPORTED', [text], 'nvext.annotations') };
  }
  const { agent_hints: hints, routing_constraints: constraints, router_config_override: override } = inner;
  const { value } = fields;
  const pin = without<NonNullable<RouteWishes['pin']>>({
    worker: value.backend_instance_id as string | undefined,
    decode: value.decode_worker_id as string | undefined,
    prefill: value.prefill_worker_id as string | undefined,
    rank: (value.dp_rank ?? value.prefill_dp_rank) as number | undefined,
  });
  const cost = without<NonNullable<RouteWishes['cost']>>({
    overlapScoreCredit: override?.overlap_score_credit as number | undefined,
    prefillLoadScale: override?.prefill_load_scale as number | undefined,
    routerTemperature: override?.router_temperature as number | undefined,
    sharedCacheMultiplier: override?.shared_cache_multiplier as number | undefined,
    trackPrefillTokens: override?.track_prefill_tokens as boolean | undefined,
  });
  const allowed = value.allowed_worker_ids as string[] | undefined;
  const wishes = without<RouteWishes>({
    ...session,
    pin: isEmpty(pin) ? undefined : pin,
    allowed: allowed === undefined ? undefined : new Set(allowed),
    requiredTaints: constraints?.required_taints as string[] | undefined,
    preferredTaints: constraints?.preferred_taints as Record<string, number> | undefined,
    priority: hints?.priority as number | undefined,
    strictPriority: hints?.strict_priority as number | undefined,
    mode: override?.router_mode as RouteWishes['mode'],
    cost: isEmpty(cost) ? undefined : cost,
  });
  const salt = value.cache_salt as string | undefined;
  return {
    ok: true,
    value: { wishes, ...(salt === undefined ? {} : { cacheSalt: salt }), dryRun: annotations.length > 0 },
  };
}

const isEmpty = (value: object) => Object.keys(value).length === 0;
const isDryRun = (annotation: string) => annotation.split(':', 1)[0] === 'query_instance_id';

/** Asks for a dry run, as far as can be seen without checking it. */
export function wantsDryRun(body: Record<string, unknown>): boolean {
  const annotations = isRecord(body.nvext) ? body.nvext.annotations : undefined;
  return Array.isArray(annotations) && annotations.some((each) => typeof each === 'string' && isDryRun(each));
}

/** Each with what it must be; of several names for one thing the first that is there counts. */
const headerFields = {
  worker: { names: ['x-dynamo-worker-instance-id'], check: Compile(name), expects: worker.expects },
  prefill: { names: ['x-dynamo-prefill-instance-id'], check: Compile(name), expects: worker.expects },
  rank: { names: ['x-dynamo-dp-rank', 'x-dynamo-prefill-dp-rank'], check: Compile(rank), expects: rankOf.expects },
  priority: { names: ['x-dynamo-request-priority'], check: Compile(int32.schema), expects: int32.expects },
  strictPriority: {
    names: ['x-dynamo-request-strict-priority'],
    check: Compile(uint32.schema),
    expects: uint32.expects,
  },
  class: { names: ['x-dynamo-meta-policy-class'], check: Compile(name), expects: 'a name of at most 64 characters' },
  tenant: { names: ['x-tenant-id'], check: Compile(key), expects: 'at most 256 visible characters' },
  session: {
    names: ['x-dynamo-session-id', 'x-session-id', 'x-claude-code-session-id', 'thread-id'],
    check: Compile(key),
    expects: 'at most 256 visible characters',
  },
} as const;
const numeric: ReadonlySet<string> = new Set(['rank', 'priority', 'strictPriority']);

const noHints: RoutingHints = { wishes: {} };

export function headerHints(headers: IncomingHttpHeaders): Checked<RoutingHints> {
  const found: Record<string, string | number> = {};
  for (const [field, { names, check, expects }] of Object.entries(headerFields)) {
    const at = names.find((each) => headers[each] !== undefined);
    if (at === undefined) continue;
    const text = headers[at];
    const value = numeric.has(field) && typeof text === 'string' && /^-?\d{1,10}$/.test(text) ? Number(text) : text;
    if (!check.Check(value)) return refused(`The header '${at}' must be ${expects}.`, at);
    found[field] = value as string | number;
  }
  if (isEmpty(found)) return { ok: true, value: noHints };
  const { worker: pinned, prefill, rank: dpRank, tenant, ...rest } = found;
  const pin = without({ worker: pinned, prefill, rank: dpRank });
  const wishes = { ...rest, ...(isEmpty(pin) ? {} : { pin }) } as RouteWishes;
  return { ok: true, value: { wishes, ...(tenant === undefined ? {} : { cacheSalt: String(tenant) }) } };
}

/** Headers count more. A worker that a header names takes the place of the one that the body names for the same leg. */
export function wishesOf(body: RouteWishes, header: RouteWishes): RouteWishes {
  if (isEmpty(header)) return body;
  if (body.pin === undefined || header.pin === undefined) return { ...body, ...header };
  const { decode, ...pin } = body.pin;
  const kept = header.pin.worker === undefined && decode !== undefined ? { decode } : {};
  return { ...body, ...header, pin: { ...pin, ...kept, ...header.pin } };
}

const mostSalt = 256;

/**
 * Domain of KV that a request may share. A tenant's own salts are kept apart from each other and from those of everybody else. Undefined:
 * together they are too long.
 */
export function saltOf(body: string | undefined, tenant: string | undefined): string | undefined {
  if (tenant === undefined) return body ?? '';
  const both = body === undefined ? tenant : `${tenant}\u0000${body}`;
  return both.length > mostSalt ? undefined : both;
}
