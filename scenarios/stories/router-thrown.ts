import { scenario } from '../story/story.js';

export default scenario({
  title: 'The router throws, and its gateway starts anew; streams of the other gateway go on',
  after: 'Dynamo 9.16: crash mid-request returns an error',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, gateways: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.throwIn('gateway-0', 'router');
    await story.runLoad({ streams: 4 });
    await story.expectAllEnd(/cut|ECONN|shutting_down/);
    await story.expectRestarts('gateway-0', 1);
    await story.expectServes();
    await story.expectNoLeak();
  },
});
