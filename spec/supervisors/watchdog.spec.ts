import { expect } from 'chai';
import { factsEveryMs } from '../../supervisors/ipc.js';
import { watchNats } from '../../supervisors/nats-probe.js';
import { watchChild } from '../../supervisors/watchdog.js';

/** Keeps this thread from doing anything, timers and sockets included. */
const freeze = (ms: number) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
const facts = (steps: number, queued: number, cpuMs = 0) =>
  ({ type: 'facts', facts: { steps, queued }, rssBytes: 0, cpuMs }) as const;

describe('The watchdog of a child process', function () {
  this.timeout(20_000);

  it('counts reports without a step while work is queued, and forgets them when a step comes or the work is gone', () => {
    const why: string[] = [];
    const dog = watchChild({ silentMs: 60_000, stuckMs: 4 * factsEveryMs }, (reason) => why.push(reason));
    dog.start();
    const hear = (...reports: [number, number][]) => {
      for (const [steps, queued] of reports) dog.heard(facts(steps, queued));
    };
    hear([1, 1], [1, 1], [1, 1], [1, 1], [2, 1], [2, 1], [2, 1], [2, 0], [2, 1], [2, 1], [2, 1]);
    expect(why).to.deep.equal([]);
    dog.stop();
  });

  it('gives a step four times as long as the longest before it, and no longer', () => {
    const why: string[] = [];
    const dog = watchChild({ silentMs: 60_000, stuckMs: 4 * factsEveryMs }, (reason) => why.push(reason));
    dog.start();
    const hear = (steps: number, times: number) => {
      for (let time = 0; time < times; time++) dog.heard(facts(steps, 1));
    };
    // The first report of a step is none without one.
    hear(1, 1 + 3);
    hear(2, 1 + 11);
    expect(why).to.deep.equal([]);
    hear(2, 1);
    expect(why).to.deep.equal([`the engine took no step for ${12 * factsEveryMs} ms with work queued`]);
    hear(2, 5);
    expect(why.length).to.equal(1);
  });

  it('gives a first step that is computed six times as long, and one that is not computed no longer', () => {
    const stillReports = (share: number) => {
      const why: string[] = [];
      const dog = watchChild({ silentMs: 60_000, stuckMs: 4 * factsEveryMs }, (reason) => why.push(reason));
      dog.start();
      dog.heard(facts(0, 0, 1_000));
      let reports = 0;
      while (why.length === 0 && reports < 100) dog.heard(facts(0, 1, 1_000 + ++reports * share * factsEveryMs));
      return reports;
    };
    expect([0, 0.4, 0.6, 2].map(stillReports)).to.deep.equal([4, 4, 24, 24]);
  });

  it('never takes a process without an engine for stuck, however long its line is', () => {
    const why: string[] = [];
    const dog = watchChild({ silentMs: 60_000, stuckMs: factsEveryMs }, (reason) => why.push(reason));
    dog.start();
    for (let time = 0; time < 100; time++) dog.heard({ type: 'facts', facts: { queued: 5 }, rssBytes: 0, cpuMs: 0 });
    dog.stop();
    expect(why).to.deep.equal([]);
  });

  it('does not take its own freeze for the silence of others', async () => {
    const why: string[] = [];
    const dog = watchChild({ silentMs: 3 * factsEveryMs, stuckMs: 60_000 }, (reason) => why.push(reason));
    dog.start();
    freeze(6 * factsEveryMs);
    // What came meanwhile is read after the timers that are due.
    await new Promise((resolve) => setTimeout(resolve, factsEveryMs));
    dog.heard(facts(1, 0));
    expect(why).to.deep.equal([]);
    await new Promise((resolve) => setTimeout(resolve, 4 * factsEveryMs));
    expect(why).to.deep.equal([`silent for ${3 * factsEveryMs} ms`]);
  });

  it('does not take its own freeze for the silence of a broker, and tells it once', async () => {
    const { createServer } = await import('node:net');
    let mute = false;
    const server = createServer((socket) => {
      socket.on('error', () => {});
      if (!mute) socket.write('INFO {}\r\n');
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    let silent = 0;
    const told = new Promise<void>((resolve) => {
      const stop = watchNats('127.0.0.1', port, 1500, () => {
        silent++;
        stop();
        resolve();
      });
    });
    freeze(4000);
    await new Promise((resolve) => setTimeout(resolve, 1200));
    expect(silent).to.equal(0);
    mute = true;
    await told;
    server.close();
    expect(silent).to.equal(1);
  });
});
