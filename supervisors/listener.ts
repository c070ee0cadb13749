/**
 * The node's HTTP socket. The node binds it and never accepts: it is handed to every gateway, which all listen on the same
 * one. While a gateway restarts, connections wait in the socket's backlog instead of being refused.
 */
import net from 'node:net';
import type { ListenHandle } from './boot.js';
import { SupervisorError } from './errors.js';

export interface Listener {
  readonly handle: ListenHandle;
  /** The real port, also when 0 was asked for. */
  readonly port: number;
  close(): void;
}

interface BoundHandle extends ListenHandle {
  getsockname(out: { port?: number }): number;
}
/** What `node:cluster` itself uses to bind without accepting; Node's public API always does both. */
type Bind = (host: string, port: number, family: 4 | 6) => BoundHandle | number;

/** Rejects with SUP_PORT_IN_USE or SUP_LISTEN. */
export async function bindListener(host: string, port: number): Promise<Listener> {
  // Two sockets that are bound but do not listen yet do not collide, so ask with one that listens.
  const found = await probe(host, port);
  const bind = (net as unknown as { _createServerHandle: Bind })._createServerHandle;
  const handle = bind(found.address, found.port, found.family);
  if (typeof handle === 'number') throw new SupervisorError('SUP_LISTEN', [host, port, `error ${handle}`]);
  const name: { port?: number } = {};
  handle.getsockname(name);
  return { handle, port: name.port ?? found.port, close: () => handle.close() };
}

function probe(host: string, port: number): Promise<{ address: string; port: number; family: 4 | 6 }> {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') reject(new SupervisorError('SUP_PORT_IN_USE', [port, host], error));
      else reject(new SupervisorError('SUP_LISTEN', [host, port, error.message], error));
    });
    server.listen({ host, port, exclusive: true }, () => {
      const { address, port: real, family } = server.address() as net.AddressInfo;
      server.close(() => resolve({ address, port: real, family: family === 'IPv6' ? 6 : 4 }));
    });
  });
}
