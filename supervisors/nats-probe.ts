/**
 * Is a NATS server alive? It greets every connection with INFO before any login; a frozen one's kernel still accepts, and
 * nothing comes. Independent of the client, whose reconnects have a rhythm of their own.
 */
import { connect } from 'node:net';

function probeNats(host: string, port: number, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    const finish = (alive: boolean) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(alive);
    };
    const timer = setTimeout(() => finish(false), timeoutMs);
    socket.on('data', (bytes) => finish(bytes.toString('latin1').startsWith('INFO')));
    socket.on('error', () => finish(false));
    socket.on('close', () => finish(false));
  });
}

const everyMs = 500;

/** Probes until stopped; calls `silent` once when nothing was heard for `silentMs`, however often it was asked. */
export function watchNats(host: string, port: number, silentMs: number, silent: () => void): () => void {
  let stopped = false;
  let heard = performance.now();
  const round = async () => {
    const asked = performance.now();
    const alive = await probeNats(host, port, everyMs);
    const now = performance.now();
    if (stopped) return;
    // A probe that took far longer than its time-out says that this process stood still, not the server.
    if (alive || now - asked > 3 * everyMs) heard = now;
    if (now - heard >= silentMs) {
      stopped = true;
      silent();
      return;
    }
    timer = setTimeout(() => void round(), Math.max(0, everyMs - (now - asked)));
  };
  let timer = setTimeout(() => void round(), everyMs);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
