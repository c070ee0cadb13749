import { presentable, settings } from '../../supervisors/index.js';
import type { Options } from './main.js';
import { configurationOf } from './settings.js';

/** `dynact config`: every value and its origin. */
export async function config(options: Options): Promise<void> {
  const { config: resolved, origins } = await configurationOf(options);
  const groups = resolved as unknown as Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  const rows = settings.map((setting) => {
    const [group, name] = setting.key.split('.') as [string, string];
    return { setting, value: presentable(setting, groups[group]?.[name]), origin: origins[setting.key] as string };
  });
  if (options.json) {
    const printed: Record<string, unknown> = {};
    for (const { setting, value, origin } of rows) printed[setting.key] = { value, origin, env: setting.env };
    process.stdout.write(`${JSON.stringify(printed, null, 2)}\n`);
    return;
  }
  const width = Math.max(...rows.map(({ setting }) => setting.key.length));
  const values = rows.map(({ value }) =>
    value === '' ? "''" : typeof value === 'object' ? JSON.stringify(value) : String(value),
  );
  const valueWidth = Math.min(40, Math.max(...values.map((value) => value.length)));
  for (const [index, { setting, origin }] of rows.entries()) {
    const value = values[index] as string;
    process.stdout.write(`${setting.key.padEnd(width)}  ${value.padEnd(valueWidth)}  ${origin}\n`);
  }
}
