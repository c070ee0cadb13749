import { expect } from 'chai';
import { ask } from './client.js';
import { endNodes, startNode, type TestNode, until } from './node-kit.js';

/** When a gateway said so of a worker, by its own clock. */
function saidAt(node: TestNode, message: string, worker: string): number | undefined {
  for (const line of node.log().split('\n')) {
    if (!line.includes(`"msg":"${message}"`) || !line.includes(worker)) continue;
    return (JSON.parse(line) as { time: number }).time;
  }
  return undefined;
}

describe('A node that nobody uses', function () {
  this.timeout(60_000);
  after(endNodes);

  it('suspects a worker that freezes within 4.5 s, serves without it, and takes it back when it thaws', async () => {
    // The node would kill it after 5 s.
    const node = await startNode(['--decode', '2'], { env: { DYNACT_NODE_SILENT_MS: '60000' } });
    const pid = await node.pid('decode-1');
    // Workers beat slowly once they have had nothing to do for 2.25 s.
    await new Promise((resolve) => setTimeout(resolve, 3_000));
    process.kill(pid, 'SIGSTOP');
    const frozenAt = Date.now();
    const suspectedAt = await until('the suspicion', () => saidAt(node, 'worker suspected', 'decode-1'), 10_000);
    // Three beats of a second have to be missed.
    expect(suspectedAt - frozenAt).to.be.within(2_000, 4_500);
    const since = performance.now();
    for (let seed = 0; seed < 8; seed++) {
      const { finish } = await ask(node.url, { prompt: 'who is there', max_tokens: 4, ignore_eos: true, seed });
      expect(finish).to.equal('length');
    }
    expect(performance.now() - since, 'nobody waits for the frozen one').to.be.below(2_000);
    const { facts } = await node.processOf('gateway-0');
    expect(facts).to.include({ migrations: 0 });
    await until('the word in its status', async () =>
      /decode-1\S* \(WORKER_SILENT, until it answers/.test(String((await node.processOf('gateway-0')).facts.inhibited)),
    );
    process.kill(pid, 'SIGCONT');
    await until('its return', () => saidAt(node, 'worker is back', 'decode-1'), 5_000);
    expect(await node.processOf('decode-1')).to.include({ pid, restarts: 0 });
  });
});
