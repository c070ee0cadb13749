import { createServer } from 'node:net';
import { NetError } from '../errors.js';

/** The wanted port, or the last one if it is free, or any. Rejects with NET_PORT_IN_USE. */
export async function choosePort(host: string, wanted: number | undefined, last: number | undefined): Promise<number> {
  if (wanted) {
    if (!(await isFree(host, wanted))) throw new NetError('NET_PORT_IN_USE', { port: wanted, host });
    return wanted;
  }
  if (last && (await isFree(host, last))) return last;
  return listenOnce(host, 0);
}

async function isFree(host: string, port: number): Promise<boolean> {
  try {
    await listenOnce(host, port);
    return true;
  } catch {
    return false;
  }
}

function listenOnce(host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(port, host, () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address ? address.port : port));
    });
  });
}
