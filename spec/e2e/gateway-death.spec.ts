/** One of two gateways is killed under load: its clients are cut off, nobody else is, and what it held and owed is settled. */
import { join } from 'node:path';
import { expect } from 'chai';
import { connectNats, decodeCbor, readCredentials, subjects } from '../../transport/index.js';
import { type Answer, ask } from './client.js';
import { endNodes, startNode, type TestNode, until, untilIdle } from './node-kit.js';

const streams = 24;
const leaseMs = 6_000;

describe('A node with two gateways, one of which is killed', function () {
  this.timeout(120_000);
  let node: TestNode;

  before(async () => {
    node = await startNode(['--gateway', '2'], { env: { DYNACT_MOCK_STEP_MS: '20', DYNACT_ENGINE_SLOTS: '32' } });
  });
  after(endNodes);

  it('cuts off its clients and no others; workers free its slots and its books are closed within the lease', async () => {
    const dead = await node.processOf('gateway-0');
    let killed = 0;
    const begun = new Set<number>();
    const running = Array.from({ length: streams }, (_, index) =>
      ask(
        node.url,
        { prompt: `question ${index}`, max_tokens: 150, ignore_eos: true, seed: index, stream: true },
        {
          onText: (text) => {
            if (text === '' || begun.has(index)) return;
            begun.add(index);
            if (begun.size < streams) return;
            // The books are written four times a second.
            setTimeout(() => {
              killed = performance.now();
              process.kill(dead.pid as number, 'SIGKILL');
            }, 600);
          },
        },
      ),
    );
    const answers: Answer[] = await Promise.all(running);
    expect(killed).to.be.greaterThan(0);
    const cut = answers.filter(({ error }) => error === 'cut');
    const whole = answers.filter(({ error, done, finish }) => error === null && done && finish === 'length');
    expect(cut.length + whole.length).to.equal(streams);
    expect(cut.length, 'streams of the killed gateway').to.be.greaterThan(0);
    expect(whole.length, 'streams of the other gateway').to.be.greaterThan(0);

    await untilIdle(node, leaseMs);
    const { url, namespace, user, password } = readCredentials(
      join(node.stateDir, 'nats', 'credentials', 'observer.json'),
    );
    const bus = await connectNats({ url, namespace, user, password });
    const s = subjects(namespace);
    const last = await until('a closed journal', async () => {
      const [found] = await bus.latest('JOURNAL', s.journal(dead.incarnation as string));
      const record = found && (decodeCbor(found.data) as { by: string; open: string[]; lost: string[] });
      return record?.open.length === 0 && record;
    });
    await bus.close();
    expect(last.by).to.not.equal(dead.incarnation);
    expect(last.lost).to.have.length(cut.length);
    expect((await ask(node.url, { prompt: 'after', max_tokens: 5 })).done).to.equal(true);
  });
});
