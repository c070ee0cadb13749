import { scenario } from '../story/story.js';

export default scenario({
  title: 'Nothing happens, and everything is answered',
  after: 'Dynamo 9.13: none (baseline)',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
