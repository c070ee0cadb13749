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

const answerMs = 500;
/** So many unanswered probes in a row are silence; often enough to know soon, seldom enough to cost nothing. */
const probes = 10;
const leastMs = 500;

/**
 * Probes until stopped; calls `silent` once when nothing was heard for `silentMs`. Counted in probes, not by the clock: while this process
 * or the whole machine stands still there are none.
 */
export function watchNats(host: string, port: number, silentMs: number, silent: () => void): () => void {
  let stopped = false;
  let unanswered = 0;
  const everyMs = Math.max(leastMs, silentMs / probes);
  const round = async () => {
    const asked = performance.now();
    const alive = await probeNats(host, port, answerMs);
    if (stopped) return;
    unanswered = alive ? 0 : unanswered + 1;
    if (unanswered * everyMs >= silentMs) {
      stopped = true;
      silent();
      return;
    }
    timer = setTimeout(() => void round(), Math.max(0, everyMs - (performance.now() - asked)));
  };
  let timer = setTimeout(() => void round(), everyMs);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
