import { scenario } from '../story/story.js';

export default scenario({
  title: 'Half of the clients leave while their answers are decoded',
  after: 'Dynamo 9.1 and 9.2: cancellation',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ tokens: 2000 });
    await story.until('decoding');
    await story.leave(16);
    await story.expectNoLeak();
    await story.expectServes();
  },
});
