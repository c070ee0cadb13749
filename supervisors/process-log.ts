import pino, { type Logger } from 'pino';
import type { Log } from '../actors/index.js';
import type { ResolvedConfig } from './config-schema.js';

/** The log of a role process. Writes at once, so a crash loses nothing. No prompt, token or key is ever a field. */
export function processLogger(instance: string, level: ResolvedConfig['log']['level']): Logger {
  return pino(
    { level, base: { instance }, timestamp: pino.stdTimeFunctions.epochTime },
    pino.destination({ fd: 2, sync: true }),
  );
}

/** One log per actor: `actorLogs(root)('router')` is the router's. */
export function actorLogs(root: Logger): (actor: string) => Log {
  return (actor) => {
    const logger = root.child({ actor });
    const at = (name: 'debug' | 'info' | 'warn' | 'error') => (message: string, fields?: Record<string, unknown>) =>
      fields === undefined ? logger[name](message) : logger[name](fields, message);
    return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
  };
}
