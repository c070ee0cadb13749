/**
 * How a server takes leave of its connections without cutting a request off. A client may send its next request on a kept connection at the
 * very moment at which the server closes it; so each connection is told to go with an answer, or is closed after it was idle for a while.
 */
import type { Server } from 'node:http';
import net, { type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Connections {
  /** Resolves when the server has stopped listening and every connection has ended by itself. `leaveMs`: how long is idle. */
  leave(leaveMs: number): Promise<void>;
}

export function trackConnections(server: Server): Connections {
  const all = new Set<Socket>();
  /** Each has had a request in progress since the leave began, or has one: its end is looked after. */
  let used: Set<Socket> | undefined;
  const active = new Map<Socket, number>();
  server.on('connection', (socket) => {
    all.add(socket);
    socket.once('close', () => {
      all.delete(socket);
      active.delete(socket);
      used?.delete(socket);
    });
  });
  server.on('request', ({ socket }, response) => {
    used?.add(socket);
    active.set(socket, (active.get(socket) ?? 0) + 1);
    response.once('close', () => {
      const left = (active.get(socket) ?? 1) - 1;
      if (left > 0) active.set(socket, left);
      else active.delete(socket);
    });
  });
  return {
    async leave(leaveMs) {
      used = new Set(active.keys());
      // For those whose answer began too early to say that the connection closes.
      server.keepAliveTimeout = Math.max(1, leaveMs);
      // Whoever asks meanwhile is served, and whoever watches sees a live process that is not ready.
      if (all.size > 0 && leaveMs > 0) await sleep(leaveMs);
      const closed = new Promise<void>((resolve) => {
        // An HTTP server's own close also ends what has just become idle.
        if (server.listening) net.Server.prototype.close.call(server, () => resolve());
        else resolve();
      });
      for (const socket of all) if (!used.has(socket)) socket.destroy();
      await closed;
    },
  };
}
