/** What the tape still knows of a request that no gateway remembers: its gateway is gone, or has decided much since. */
import { join } from 'node:path';
import { decideAgain, decodeRoutes, explained, type RouteBatch } from '../actors/index.js';
import { type Bus, connectNats, readCredentials, subjects } from '../transport/index.js';
import type { ResolvedConfig } from './config-schema.js';
import type { RouteAnswer } from './route-question.js';

const connectMs = 3_000;

/** By gateway, oldest first; empty: nothing is known. Rejects as `Bus.read` does. */
export async function tapedRoutes(bus: Bus, id: string): Promise<readonly RouteAnswer[]> {
  const batches = await bus.read('TAPE', subjects(bus.namespace).tape('gateway', '*'), ({ data }) => {
    const batch = decodeRoutes(data, id);
    return batch !== undefined && batch.records.length + batch.began.length > 0 ? batch : undefined;
  });
  const byGateway = new Map<string, RouteBatch[]>();
  for (const batch of batches) byGateway.set(batch.gateway, [...(byGateway.get(batch.gateway) ?? []), batch]);
  return [...byGateway].map(([gateway, own]) => {
    const began = own.flatMap((batch) => batch.began);
    const records = own.flatMap((batch) => batch.records);
    const made = records.flatMap(({ decisions }) => decisions);
    return {
      gateway,
      taped: { unlike: made.filter((each) => decideAgain(each).chosen !== each.chosen).length },
      records: records.map((record) => {
        const cachedTokens = began.find(({ attempt }) => attempt === record.attempt)?.cachedTokens;
        // An attempt may have waited first: what the cache had belongs to where it went.
        const had = record.placed === undefined || cachedTokens === undefined ? {} : { cachedTokens };
        return { ...record, ...had, decisions: record.decisions.map(explained) };
      }),
    };
  });
}

/**
 * The same of a node, from its broker, as an observer if that is its own. Rejects when credentials cannot be read or the broker does not
 * answer.
 */
export async function readRouteTape({ nats, node }: ResolvedConfig, id: string): Promise<readonly RouteAnswer[]> {
  const bus = await connectNats({
    ...(nats.url === ''
      ? readCredentials(join(node.stateDir, 'nats', 'credentials', 'observer.json'))
      : {
          url: nats.url,
          namespace: node.namespace,
          ...(nats.user !== '' && { user: nats.user, password: nats.password }),
        }),
    name: 'dynact-route',
    connectTimeoutMs: connectMs,
  });
  try {
    return await tapedRoutes(bus, id);
  } finally {
    await bus.close();
  }
}
