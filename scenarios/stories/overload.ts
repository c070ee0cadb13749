import { scenario } from '../story/story.js';

export default scenario({
  title: 'More requests than may wait: the rest is told so at once',
  after: 'Dynamo 9.15: busy threshold 529',
  async tell(story) {
    await story.startNode({ prefill: 1, decode: 1, slots: 4, env: { DYNACT_ROUTING_QUEUE_LENGTH: '8' } });
    await story.runLoad({ streams: 60, tokens: 60 });
    await story.expectAllEnd(/529/);
    await story.expectRefused(/529/, 20);
    await story.expectNoLeak();
    await story.expectServes();
  },
});
