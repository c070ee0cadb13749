import { expect } from 'chai';
import type { Runnable } from '../../actors/index.js';
import { nactDispatcher } from '../../actors/kernel/nact-dispatcher.js';

describe('a turn of all actors', () => {
  it('in which the kernel itself throws ends the process, and does not leave the other actors silent', async () => {
    const others = process.listeners('uncaughtException');
    process.removeAllListeners('uncaughtException');
    const dispatcher = nactDispatcher(() => performance.now());
    try {
      const uncaught = new Promise<Error>((resolve) => process.once('uncaughtException', resolve));
      const runs = new Promise<string>((resolve) => {
        dispatcher.schedule(runnable(() => thrown('a defect of the kernel')));
        dispatcher.schedule(runnable(() => resolve('ran')));
      });
      expect((await uncaught).message).to.equal('a defect of the kernel');
      expect(await runs).to.equal('ran');
    } finally {
      dispatcher.close();
      for (const other of others) process.on('uncaughtException', other);
    }
  });
});

function runnable(run: () => void): Runnable {
  return {
    path: 'spec',
    run() {
      run();
      return false;
    },
  };
}

function thrown(message: string): never {
  throw new Error(message);
}
