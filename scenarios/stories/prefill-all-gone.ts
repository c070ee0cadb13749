import { scenario } from '../story/story.js';

export default scenario({
  title: 'Both prefill workers are killed at once: requests wait for their successors',
  after: 'Dynamo issues/739: disaggregated requests hang',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ words: 300 });
    await story.kill('prefill-0');
    await story.kill('prefill-1');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
