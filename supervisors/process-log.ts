import pino from 'pino';
import type { Log } from '../actors/index.js';
import type { ResolvedConfig } from './config-schema.js';

/**
 * Log of a role process: `processLog(...)('router')` is the router's. Writes at once, so a crash loses nothing. No prompt,
 * token or key is ever a field.
 */
export function processLog(instance: string, level: ResolvedConfig['log']['level']): (actor: string) => Log {
  const root = pino(
    { level, base: { instance }, timestamp: pino.stdTimeFunctions.epochTime },
    pino.destination({ fd: 2, sync: true }),
  );
  return (actor) => {
    const logger = root.child({ actor });
    const at = (name: 'debug' | 'info' | 'warn' | 'error') => (message: string, fields?: Record<string, unknown>) =>
      fields === undefined ? logger[name](message) : logger[name](fields, message);
    return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
  };
}
