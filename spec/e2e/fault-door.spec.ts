import { expect } from 'chai';
import { injectFault } from '../../supervisors/index.js';
import { ask } from './client.js';
import { endNodes, startNode, until } from './node-kit.js';

const refusal = (work: Promise<void>) =>
  work.then(
    () => 'injected',
    (error) => (error as { code?: string }).code,
  );

describe('The door for injected faults', function () {
  this.timeout(60_000);
  after(endNodes);

  it('does not exist on a node that was not started with it', async () => {
    const node = await startNode();
    expect(await refusal(injectFault(node.stateDir, 'decode-0', { kind: 'wedge' }))).to.equal('SUP_FAULT');
    expect((await ask(node.url, { prompt: 'x', max_tokens: 3 })).status).to.equal(200);
  });

  it('makes the actor that is named fail, says so in its process’s last words, and refuses what there is not', async () => {
    const node = await startNode([], { env: { DYNACT_FAULTS_ENABLED: 'true' } });
    expect(await refusal(injectFault(node.stateDir, 'decode-7', { kind: 'wedge' }))).to.equal('SUP_FAULT');
    await injectFault(node.stateDir, 'gateway-0', { kind: 'throw', actor: 'nobody' });
    await injectFault(node.stateDir, 'decode-0', { kind: 'throw', actor: 'gpu' });
    // Its beacon asks the gpu actor for its load, so that it takes no request to hit it.
    const { lastReason } = await until('restart of decode-0', async () => {
      const process = await node.processOf('decode-0');
      return process.restarts === 1 && process.state === 'up' && process;
    });
    expect(lastReason).to.contain('injected fault in gpu');
    expect((await node.processOf('gateway-0')).restarts).to.equal(0);
    expect(node.log()).to.contain('no such fault here: throw nobody');
    expect((await ask(node.url, { prompt: 'x', max_tokens: 3 })).status).to.equal(200);
  });
});
