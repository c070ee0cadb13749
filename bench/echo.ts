/**
 * The least that two JetStream hops can cost here: publish → consume → publish → consume → core reply, three processes, the same
 * broker settings and the same client code as dynact's, and nothing else.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolveToolchain } from '../supervisors/index.js';
import { address, connectNats, ensureStreams, startNatsServer, subjects } from '../transport/index.js';
import { says, startScript } from './processes.js';

export interface Echo {
  /** Milliseconds from publishing to the reply. One at a time. */
  once(payload: Uint8Array): Promise<number>;
  stop(): Promise<void>;
}

export async function startEcho(): Promise<Echo> {
  const stateDir = mkdtempSync(join(tmpdir(), 'dynact-echo-'));
  const server = await startNatsServer({ binary: resolveToolchain().natsServer, stateDir, namespace: 'echo' });
  const bus = await connectNats({ ...server.credentials('node'), name: 'echo-client' });
  await ensureStreams(bus);
  const subject = subjects('echo');
  const [first, second] = [address('decode', 'echo-one', 'worker'), address('prefill', 'echo-two', 'worker')];
  const reply = subject.out('echo-client');
  const hop = (...args: string[]) =>
    startScript(new URL('./processes/echo-hop.js', import.meta.url), [server.credentialsFile('node'), ...args]);
  const hops = [hop(first, 'store', subject.mail(second)), hop(second, 'send', reply)];
  await Promise.all(hops.map((started) => says(started, /^ready/)));
  let arrived: () => void = () => {};
  bus.subscribe(reply, () => arrived());
  await bus.flush();
  let sent = 0;
  return {
    async once(payload) {
      const start = performance.now();
      const back = new Promise<number>((resolve) => {
        arrived = () => resolve(performance.now() - start);
      });
      // The store's own answer may come after the reply: it is awaited, but does not count.
      const [ms] = await Promise.all([back, bus.store(subject.mail(first), payload, `echo-${++sent}`, 5_000)]);
      return ms;
    },
    async stop() {
      await Promise.all(hops.map((started) => started.stop()));
      await bus.close();
      await server.stop();
      rmSync(stateDir, { recursive: true, force: true });
    },
  };
}
