/**
 * A TCP proxy between one process of the node and its broker, so that this one connection can be cut, starved or slowed while all others
 * go on. There are such proxies only with `faults.links`; without it every process connects to the broker itself.
 */
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface LinkFault {
  readonly kind: 'link';
  /**
   * open: bytes pass. slow: each piece of bytes passes `delayMs` later, in order. held: nothing passes, the connection stays, as when
   * packets are lost. cut: the connection is closed and a new one is refused.
   */
  readonly state: 'open' | 'slow' | 'held' | 'cut';
  /** Of each direction, in slow; 0 to 60,000. */
  readonly delayMs?: number;
}

export interface Link {
  readonly port: number;
  /** Throws a TypeError for what is no LinkFault. */
  set(fault: LinkFault): void;
  close(): void;
}

const states: readonly unknown[] = ['open', 'slow', 'held', 'cut'];
const longestDelayMs = 60_000;

/** `broker`: its URL now; '' while there is none. Rejects if there is no port to listen on. */
export async function openLink(broker: () => string): Promise<Link> {
  let state: LinkFault['state'] = 'open';
  let delayMs = 0;
  const pairs = new Set<readonly [Socket, Socket]>();

  /** What waits is bounded by the sockets: a side is not read while a piece of it is under way. */
  const forward = (from: Socket, to: Socket) => {
    const write = (piece: Buffer) => {
      if (to.destroyed) return;
      if (to.write(piece)) resume(from);
      else to.once('drain', () => resume(from));
    };
    from.on('data', (piece: Buffer) => {
      from.pause();
      if (state === 'slow' && delayMs > 0) setTimeout(write, delayMs, piece);
      else write(piece);
    });
  };
  const resume = (socket: Socket) => {
    if (state !== 'held' && !socket.destroyed) socket.resume();
  };
  const end = (pair: readonly [Socket, Socket]) => {
    pairs.delete(pair);
    for (const socket of pair) socket.destroy();
  };

  const server = createServer((near) => {
    near.on('error', () => near.destroy());
    const url = broker();
    if (state === 'cut' || url === '') {
      near.destroy();
      return;
    }
    const { hostname, port } = new URL(url);
    const far = connect({ host: hostname, port: Number(port || 4222), noDelay: true });
    near.setNoDelay(true);
    const pair = [near, far] as const;
    pairs.add(pair);
    for (const socket of pair) {
      socket.on('error', () => end(pair));
      socket.on('close', () => end(pair));
    }
    forward(near, far);
    forward(far, near);
    if (state === 'held') for (const socket of pair) socket.pause();
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    set(fault) {
      const delay = fault.delayMs ?? 0;
      if (!states.includes(fault.state) || !(delay >= 0 && delay <= longestDelayMs))
        throw new TypeError(`no such state of a link: ${String(fault.state)} ${String(fault.delayMs ?? '')}`);
      state = fault.state;
      delayMs = delay;
      for (const pair of [...pairs]) {
        if (state === 'cut') end(pair);
        else for (const socket of pair) state === 'held' ? socket.pause() : resume(socket);
      }
    },
    close() {
      server.close();
      for (const pair of [...pairs]) end(pair);
    },
  };
}
