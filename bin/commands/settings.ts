import { type Configuration, resolveConfig, settings } from '../../supervisors/index.js';
import type { Options } from './main.js';

/** The configuration from the file, the environment and a command's options. */
export function configurationOf(options: Options): Promise<Configuration> {
  const flags: Record<string, unknown> = {};
  for (const { key, schema } of settings) if (schema.flag) flags[key] = options[camel(schema.flag)];
  return resolveConfig({
    cwd: process.cwd(),
    env: process.env,
    flags,
    file: typeof options.config === 'string' ? options.config : undefined,
  });
}

/** The state folder alone, for commands that talk to a running node. */
export async function stateDirOf(options: { readonly stateDir?: string }): Promise<string> {
  return (await configurationOf({ stateDir: options.stateDir })).config.node.stateDir;
}

/** `--state-dir` is `stateDir` in commander's options. */
function camel(flag: string): string {
  return flag.slice(2).replace(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());
}
