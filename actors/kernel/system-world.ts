/** The real world. The one file under actors/ that may touch the process's clock, timers and randomness. */
import { randomFillSync } from 'node:crypto';
import type { Post } from '../../transport/index.js';
import type { Log, World } from './contract.js';
import { idSource } from './id.js';

export interface SystemWorldOptions {
  readonly post: Post;
  readonly log: (actor: string) => Log;
}

/** Node fires a timer with a longer delay after 1 ms. */
const longestTimerMs = 2 ** 31 - 1;

/** [0, 1) with 53 bits from the system's generator, drawn in bulk since each draw costs a system call. */
function cryptoRandom(): () => number {
  const pool = new Uint32Array(1024);
  let next = pool.length;
  return () => {
    if (next + 2 > pool.length) {
      randomFillSync(pool);
      next = 0;
    }
    const high = (pool[next++] as number) >>> 5;
    const low = (pool[next++] as number) >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  };
}

export function systemWorld({ post, log }: SystemWorldOptions): World {
  const random = cryptoRandom();
  const wallTime = (): number => Date.now();
  return {
    now: () => performance.now(),
    wallTime,
    random,
    id: idSource(wallTime, random),
    setTimer(ms, fire) {
      const timer = setTimeout(fire, Math.min(Math.max(0, ms), longestTimerMs));
      return () => clearTimeout(timer);
    },
    post,
    log,
  };
}
