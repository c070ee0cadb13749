import { expect } from 'chai';
import { type Bus, createMemoryBroker, dropSetting, putSetting, watchSettings } from '../../transport/index.js';
import { Gate, startBroker } from './kit.js';

const leaseMs = 1_000;
const sides = {
  async 'in memory'() {
    const broker = createMemoryBroker({ namespace: 'spec', leaseMs });
    return { connect: async (): Promise<Bus> => broker.connect(), stop: async () => {} };
  },
  async 'on NATS'() {
    const broker = await startBroker({ settings: { leaseMs } });
    return { connect: (role: 'gateway' | 'decode'): Promise<Bus> => broker.connect(role), stop: () => broker.stop() };
  },
};

for (const [name, open] of Object.entries(sides)) {
  describe(`Settings ${name}`, function () {
    this.timeout(30_000);

    it('are told to gateways and workers, outlive the lease of instances, and end when they are dropped', async () => {
      const side = await open();
      try {
        const gateway = await side.connect('gateway');
        const worker = await side.connect('decode');
        const gate = new Gate();
        const told: (readonly [string, unknown])[] = [];
        const watch = await watchSettings(worker, (key, value) => {
          told.push([key, value]);
          gate.change();
        });
        await putSetting(gateway, 'routing.a', 0.5);
        await putSetting(gateway, 'routing.b', 'x');
        await gateway.put('setting.broken', Buffer.from('{'));
        // An entry with a lease, put later, is gone: what has none is still there for whoever comes then.
        await gate.until(() => told.length === 2);
        let expired = false;
        await gateway.watch('instance.', ({ expired: gone }) => {
          expired ||= gone === true;
          gate.change();
        });
        await gateway.put('instance.gateway.brief', Buffer.from('{}'));
        await gate.until(() => expired);
        const late: (readonly [string, unknown])[] = [];
        const latecomer = await watchSettings(gateway, (key, value) => void late.push([key, value]));
        await latecomer.ready;
        expect(late).to.have.deep.members([
          ['routing.a', 0.5],
          ['routing.b', 'x'],
        ]);
        await putSetting(gateway, 'routing.a', 0.75);
        await dropSetting(gateway, 'routing.b');
        await gate.until(() => told.length === 4);
        expect(told.slice(2)).to.deep.equal([
          ['routing.a', 0.75],
          ['routing.b', undefined],
        ]);
        expect(watch.counters.malformed).to.equal(1);
        for (const { stop } of [watch, latecomer]) stop();
        await gateway.close();
        await worker.close();
      } finally {
        await side.stop();
      }
    });
  });
}
