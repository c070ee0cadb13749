/**
 * Resolves the configuration: defaults < `dynact.config.{json,yaml}` < environment < flags. The result is complete, frozen
 * and knows where each value came from. A wrong key or an impossible pair is an error that names the key and the nearest
 * valid one: a typo that is silently ignored costs its author an evening.
 */
import { readFile, stat } from 'node:fs/promises';
import { availableParallelism, hostname } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import Value from 'typebox/value';
import { ConfigSchema, type ResolvedConfig, type Setting, settings } from './config-schema.js';
import { SupervisorError } from './errors.js';
import { edits, nearest } from './nearest.js';

export interface ConfigSources {
  /** Relative paths in flags and the environment, and the default configuration file, are looked up here. */
  readonly cwd: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Values by setting key, e.g. { 'http.port': '9000' }; undefined = not given. */
  readonly flags: Readonly<Record<string, unknown>>;
  /** Configuration file named on the command line. */
  readonly file?: string | undefined;
}

export interface Configuration {
  readonly config: ResolvedConfig;
  /** By setting key: `default`, a file's path, an environment name or a flag; why, where it is derived. */
  readonly origins: Readonly<Record<string, string>>;
}

interface Given {
  readonly value: unknown;
  readonly origin: string;
  /** Folder that a relative path in the value starts from. */
  readonly base: string;
}

const fileNames = ['dynact.config.json', 'dynact.config.yaml', 'dynact.config.yml'];
const maxFileBytes = 1024 * 1024;
/** Read by set-up and the command line, not settings of a node. */
const otherNames = new Set(['DYNACT_CONFIG', 'DYNACT_CACHE', 'DYNACT_SETUP_VERBOSE', 'DYNACT_ADDON']);
const byKey = new Map(settings.map((setting) => [setting.key, setting]));

/** Rejects with SUP_CONFIG_FILE, SUP_CONFIG_KEY, SUP_CONFIG_VALUE or SUP_CONFIG_PAIR. */
export async function resolveConfig(sources: ConfigSources): Promise<Configuration> {
  const given = new Map<string, Given>();
  const layers = [await fromFile(sources), fromEnvironment(sources), fromFlags(sources)];
  for (const layer of layers) for (const [key, value] of layer) given.set(key, value);

  const plain: Record<string, Record<string, unknown>> = {};
  const origins: Record<string, string> = {};
  for (const setting of settings) {
    const found = given.get(setting.key);
    const [group, name] = setting.key.split('.') as [string, string];
    plain[group] ??= {};
    (plain[group] as Record<string, unknown>)[name] = found ? checked(setting, found) : setting.schema.default;
    origins[setting.key] = found?.origin ?? 'default';
  }
  const config = plain as unknown as Writable;
  derive(config, origins);
  checkPairs(config, origins);
  return Object.freeze({ config: freeze(config) as ResolvedConfig, origins: Object.freeze(origins) });
}

/** Values as people may see them: secrets are `***`, credentials are cut out of URLs. */
export function presentable(setting: Setting, value: unknown): unknown {
  if (setting.schema.secret && value !== '') return '***';
  return typeof value === 'string' ? value.replace(/:\/\/[^@/]*@/, '://***@') : value;
}

type Writable = {
  -readonly [G in keyof ResolvedConfig]: { -readonly [K in keyof ResolvedConfig[G]]: ResolvedConfig[G][K] };
};

async function fromFile(sources: ConfigSources): Promise<Map<string, Given>> {
  const named = sources.file ?? (sources.env.DYNACT_CONFIG || undefined);
  const paths = named === undefined ? fileNames.map((name) => join(sources.cwd, name)) : [resolve(sources.cwd, named)];
  const present: string[] = [];
  for (const path of paths) {
    const facts = await stat(path).catch(() => undefined);
    if (facts?.isFile()) present.push(path);
    if (facts && facts.size > maxFileBytes) throw new SupervisorError('SUP_CONFIG_FILE', [path, 'larger than 1 MiB']);
  }
  if (present.length > 1) throw new SupervisorError('SUP_CONFIG_FILE', [present.join(' and '), 'keep one of them']);
  const path = present[0];
  if (path === undefined) {
    if (named !== undefined) throw new SupervisorError('SUP_CONFIG_FILE', [paths[0], 'not found']);
    return new Map();
  }
  return flatten(await parse(path), path);
}

async function parse(path: string): Promise<unknown> {
  try {
    const source = await readFile(path, 'utf8');
    if (path.endsWith('.json')) return JSON.parse(source);
    return (await import('yaml')).parse(source, { maxAliasCount: 100 });
  } catch (error) {
    throw new SupervisorError('SUP_CONFIG_FILE', [path, error instanceof Error ? error.message : error], error);
  }
}

function flatten(parsed: unknown, path: string): Map<string, Given> {
  const found = new Map<string, Given>();
  if (parsed === null || parsed === undefined) return found;
  if (!isRecord(parsed)) throw new SupervisorError('SUP_CONFIG_FILE', [path, 'must hold groups of settings']);
  for (const [group, members] of Object.entries(parsed)) {
    if (!Object.hasOwn(ConfigSchema.properties, group)) throw unknownKey(group, path);
    if (!isRecord(members))
      throw new SupervisorError('SUP_CONFIG_FILE', [path, `${group} must be a group of settings`]);
    for (const [name, value] of Object.entries(members)) {
      const key = `${group}.${name}`;
      if (!byKey.has(key)) throw unknownKey(key, path);
      found.set(key, { value, origin: path, base: dirname(path) });
    }
  }
  return found;
}

function fromEnvironment({ env, cwd }: ConfigSources): Map<string, Given> {
  const found = new Map<string, Given>();
  for (const setting of settings) {
    for (const { name, times } of [{ name: setting.env, times: 1 }, ...(setting.schema.alias ?? [])]) {
      const text = env[name];
      if (text === undefined || text === '') continue;
      const value = times === undefined || times === 1 ? text : String(Number(text) * times);
      found.set(setting.key, { value, origin: name, base: cwd });
      break;
    }
  }
  const known = settings.map((setting) => setting.env);
  for (const name of Object.keys(env)) {
    if (!name.startsWith('DYNACT_') || otherNames.has(name) || known.includes(name)) continue;
    const close = nearest(name, known) as string;
    // Names that look like no setting belong to somebody else, such as a container platform's service links.
    if (edits(name, close) <= 3) throw new SupervisorError('SUP_CONFIG_KEY', [name, 'environment', close]);
  }
  return found;
}

function fromFlags({ flags, cwd }: ConfigSources): Map<string, Given> {
  const found = new Map<string, Given>();
  for (const [key, value] of Object.entries(flags)) {
    if (value === undefined) continue;
    const setting = byKey.get(key);
    if (!setting) throw unknownKey(key, 'flag');
    found.set(key, { value, origin: setting.schema.flag ?? key, base: cwd });
  }
  return found;
}

function unknownKey(key: string, where: string): SupervisorError {
  const keys = settings.map((setting) => setting.key);
  // `port` at the top level means `http.port`, not the group whose name has as few letters.
  const sameName = keys.find((candidate) => candidate.split('.')[1] === key);
  const candidates = key.includes('.') ? keys : [...keys, ...Object.keys(ConfigSchema.properties)];
  return new SupervisorError('SUP_CONFIG_KEY', [key, where, sameName ?? nearest(key, candidates)]);
}

/** A value for a setting given by its key, as text or as it is. Throws SUP_CONFIG_KEY or SUP_CONFIG_VALUE. */
export function settingValue(key: string, value: unknown, origin: string): unknown {
  const setting = byKey.get(key);
  if (setting === undefined) throw unknownKey(key, origin);
  return checked(setting, { value, origin, base: process.cwd() });
}

/** Turns text into the setting's type and checks it. */
function checked(setting: Setting, { value, origin, base }: Given): unknown {
  const converted = convert(setting, value, base);
  const [error] = Value.Errors(setting.schema, converted);
  if (error === undefined) return converted;
  if (converted === '') {
    const wanted = `must not be empty (${setting.schema.description})`;
    throw new SupervisorError('SUP_CONFIG_VALUE', [setting.key, '""', origin, wanted]);
  }
  const allowed = (setting.schema as { enum?: readonly string[] }).enum;
  const wanted = allowed
    ? `must be one of ${allowed.join(', ')}; did you mean ${nearest(String(value), allowed)}?`
    : `${error.message} (${setting.schema.description})`;
  throw new SupervisorError('SUP_CONFIG_VALUE', [
    setting.key,
    JSON.stringify(presentable(setting, value)),
    origin,
    wanted,
  ]);
}

const byteUnits: Readonly<Record<string, number>> = { '': 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 };

function convert(setting: Setting, value: unknown, base: string): unknown {
  // The folder that relative paths start from is not what an empty one means.
  if (typeof value !== 'string' || value === '') return value;
  const type = (setting.schema as { type?: string }).type;
  if (type === 'boolean') return { true: true, '1': true, false: false, '0': false }[value] ?? value;
  if (type === 'integer' || type === 'number') {
    const [, digits, unit] = /^\s*(-?[\d.]+(?:e\d+)?)\s*(KiB|MiB|GiB|)\s*$/.exec(value) ?? [];
    if (digits === undefined || (unit !== '' && !setting.key.endsWith('Bytes'))) return value;
    return Number(digits) * (byteUnits[unit as string] as number);
  }
  if (type === 'array') {
    try {
      return JSON.parse(value);
    } catch {
      return value;
    }
  }
  if (setting.key === 'node.stateDir') return resolve(base, value);
  if (setting.key === 'model.id' && (value.includes('/') || value.endsWith('.gguf'))) return resolve(base, value);
  return value;
}

/** Fills what depends on other settings or on this host. */
function derive(config: Writable, origins: Record<string, string>): void {
  const isDefault = (key: string) => origins[key] === 'default';
  config.node.stateDir = resolve(config.node.stateDir);
  if (config.node.name === '') {
    config.node.name = hostname()
      .replace(/[^A-Za-z0-9_-]/g, '-')
      .slice(0, 32);
    if (isDefault('node.name')) origins['node.name'] = 'default (host name)';
  }
  if (config.engine.kind === 'mock') {
    // It holds no KV to speak of, so what is careful for a real model would only be small for this one.
    const own = { 'model.id': 'mock', 'model.contextTokens': 32_768, 'engine.slots': 256, 'engine.prefillSlots': 256 };
    for (const [key, value] of Object.entries(own)) {
      if (!isDefault(key)) continue;
      const [group, name] = key.split('.') as [keyof Writable, string];
      (config[group] as Record<string, unknown>)[name] = value;
      origins[key] = 'default (engine.kind = mock)';
    }
  }
  if (config.engine.threads === 0) {
    const cores = availableParallelism();
    const workers = Math.max(1, config.topology.prefill + config.topology.decode);
    config.engine.threads = Math.max(1, Math.floor(cores / workers));
    origins['engine.threads'] = `${origins['engine.threads']} (${cores} cores, ${workers} workers)`;
  }
}

function checkPairs(config: Writable, origins: Record<string, string>): void {
  const { topology, engine, model, nats, http, restart, deadlines, routing } = config;
  const at = (key: string) => `${key} (${origins[key]})`;
  const require = (holds: boolean, message: string) => {
    if (!holds) throw new SupervisorError('SUP_CONFIG_PAIR', [message]);
  };
  require(topology.decode > 0 ||
    topology.prefill === 0 ||
    nats.url !==
      '', `${at('topology.prefill')} = ${topology.prefill} needs decode workers, and ${at('topology.decode')} is 0; set topology.decode to 1 or more, or nats.url to a broker whose other nodes have them`);
  require(topology.decode + topology.prefill + topology.gateway >
    0, `${at('topology.gateway')}, topology.prefill and topology.decode are all 0: the node would run nothing`);
  require((topology.gateway > 0 && topology.decode > 0) ||
    nats.url !==
      '', `${at(topology.gateway > 0 ? 'topology.decode' : 'topology.gateway')} = 0 makes sense only with nats.url, where other nodes provide the rest`);
  require(engine.kind !== 'mock' ||
    !model.id.includes(
      '/',
    ), `${at('engine.kind')} = mock loads no weights, and ${at('model.id')} names a file; drop one of them`);
  require(engine.kind === 'mock' ||
    model.id !==
      'mock', `${at('model.id')} = mock needs engine.kind = mock (--engine mock), and ${at('engine.kind')} is ${engine.kind}`);
  require(engine.kind !== 'mock' ||
    engine.gpu === 'cpu', `${at('engine.gpu')} = ${engine.gpu} has no meaning with engine.kind = mock`);
  const classes = routing.classes.map(({ name }) => name);
  require(new Set(classes).size ===
    classes.length, `${at('routing.classes')}: two classes have one name: ${classes.join(', ')}`);
  require(engine.prefillChunkTokens % 64 ===
    0, `${at('engine.prefillChunkTokens')} = ${engine.prefillChunkTokens} must be a multiple of 64; the nearest is ${Math.max(64, Math.round(engine.prefillChunkTokens / 64) * 64)}`);
  require(restart.backoffMinMs <=
    restart.backoffMaxMs, `${at('restart.backoffMinMs')} = ${restart.backoffMinMs} is above ${at('restart.backoffMaxMs')} = ${restart.backoffMaxMs}`);
  require(deadlines.acceptMs <= deadlines.firstTokenMs &&
    deadlines.firstTokenMs <=
      deadlines.totalMs, `deadlines must grow: ${at('deadlines.acceptMs')} = ${deadlines.acceptMs}, ${at('deadlines.firstTokenMs')} = ${deadlines.firstTokenMs}, ${at('deadlines.totalMs')} = ${deadlines.totalMs}`);
  require((nats.user === '') === (nats.password === '') &&
    (nats.user === '' ||
      nats.url !==
        ''), `${at('nats.user')} and nats.password go together, and only with nats.url: the embedded server has credentials of its own`);
  require(!http.host.includes('://'), `${at('http.host')} = ${http.host} must be an address, not a URL`);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function freeze<T extends object>(value: T): T {
  for (const member of Object.values(value)) if (typeof member === 'object' && member !== null) freeze(member);
  return Object.freeze(value);
}
