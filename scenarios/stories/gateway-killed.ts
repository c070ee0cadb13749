import { scenario } from '../story/story.js';

export default scenario({
  title: 'A gateway is killed: its clients are lost at once, the others are served',
  after: 'Dynamo 9.13: frontend process kill',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, gateways: 2 });
    await story.runLoad({ streams: 32 });
    await story.until('decoding');
    await story.kill('gateway-0');
    await story.expectAllEnd(/cut/);
    await story.expectRestarts('gateway-0', 1);
    await story.expectServes();
    await story.expectNoLeak();
  },
});
