import { payloadBytes } from '../limits.js';
import { subjects } from '../subjects.js';
import { permissionsOf, type Role, roles } from './permissions.js';

interface ConfigInput {
  readonly namespace: string;
  readonly host: string;
  readonly port: number;
  readonly name: string;
  readonly passwords: Record<Role, string>;
  /** JetStream's folder. */
  readonly store: string;
  readonly maxDiskBytes: number;
  readonly maxMemoryBytes: number;
}

/** nats-server's configuration. JSON values are valid in it, which takes care of quoting. */
export function serverConfig(input: ConfigInput): string {
  const { host, port, name, passwords } = input;
  const s = subjects(input.namespace);
  const users = roles.map((role) => {
    const { publish, subscribe } = permissionsOf(role, s);
    return {
      user: role,
      password: passwords[role],
      permissions: { publish, subscribe, allow_responses: { max: 1, expires: '1m' } },
    };
  });
  const settings = {
    host,
    port,
    server_name: name,
    max_payload: payloadBytes,
    // Core messages to a reader that does not keep up are dropped with its connection; it reconnects and resyncs.
    write_deadline: '5s',
    jetstream: {
      store_dir: input.store,
      max_file_store: input.maxDiskBytes,
      max_memory_store: input.maxMemoryBytes,
    },
    authorization: { timeout: 5, users },
  };
  return `${Object.entries(settings)
    .map(([key, value]) => `${key}: ${JSON.stringify(value, undefined, 2)}`)
    .join('\n')}\n`;
}
