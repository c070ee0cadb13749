/** Settings that are changed while everything runs, in every process that rests on them: `dynact config set`, and /busy_threshold. */
import { type Bus, dropSetting, putSetting, type Stop, watchSettings } from '../transport/index.js';
import { settingValue } from './config.js';
import { type ResolvedConfig, type Setting, settings } from './config-schema.js';
import { SupervisorError } from './errors.js';
import { nearest } from './nearest.js';

const live: ReadonlyMap<string, Setting> = new Map(
  settings.filter(({ schema }) => schema.live === true).map((setting) => [setting.key, setting]),
);

/** The groups that have any. */
export type LiveConfig = Pick<ResolvedConfig, 'routing' | 'disagg'>;

/** Throws SUP_CONFIG_LIVE for a setting that needs a restart, SUP_CONFIG_KEY and SUP_CONFIG_VALUE. */
function checkedLive(key: string, value: unknown, origin: string): unknown {
  const checked = settingValue(key, value, origin);
  if (!live.has(key)) throw new SupervisorError('SUP_CONFIG_LIVE', [key, nearest(key, [...live.keys()])]);
  return checked;
}

/**
 * Values by key; undefined: what is configured holds again. All are checked before any is set. Resolves with them as they were set. Rejects as
 * `checkedLive` and `Bus.put`.
 */
export async function changeSettings(
  bus: Bus,
  changes: ReadonlyMap<string, unknown>,
): Promise<ReadonlyMap<string, unknown>> {
  const checked = [...changes].map(([key, value]) => {
    const valid = checkedLive(key, value ?? live.get(key)?.schema.default, 'set');
    return { key, value: value === undefined ? undefined : valid };
  });
  for (const { key, value } of checked) {
    if (value === undefined) await dropSetting(bus, key);
    else await putSetting(bus, key, value);
  }
  return new Map(checked.map(({ key, value }) => [key, value]));
}

export interface LiveSettings {
  /** As it holds now. */
  config(): LiveConfig;
  /** What is set and differs from the configuration, by key. */
  changed(): ReadonlyMap<string, unknown>;
  readonly stop: Stop;
}

/**
 * Follows all of them; `apply` hears of each change. Resolves when what was set before is in force. `keep`: puts back what a broker has
 * lost. A value that is out of range is somebody else's mistake: it is warned of and not applied.
 */
export async function followSettings<T extends LiveConfig>(
  bus: Bus,
  configured: T,
  apply: (config: T) => void,
  {
    keep,
    warn,
  }: { readonly keep: boolean; readonly warn: (facts: Readonly<Record<string, unknown>>, message: string) => void },
): Promise<LiveSettings> {
  const set = new Map<string, unknown>();
  let config = configured;
  const watch = await watchSettings(
    bus,
    (key, value) => {
      // One that a newer version knows.
      if (!live.has(key)) return;
      try {
        if (value === undefined) set.delete(key);
        else set.set(key, checkedLive(key, value, 'set'));
      } catch (error) {
        warn({ key, err: error }, 'a setting was not applied');
        return;
      }
      config = merged(configured, set);
      apply(config);
    },
    { keep },
  );
  await watch.ready;
  return { config: () => config, changed: () => set, stop: watch.stop };
}

function merged<T extends LiveConfig>(configured: T, set: ReadonlyMap<string, unknown>): T {
  const config: Record<string, Record<string, unknown>> = { ...configured } as never;
  for (const [key, value] of set) {
    const [group, name] = key.split('.') as [string, string];
    config[group] = { ...config[group], [name]: value };
  }
  return config as never;
}
