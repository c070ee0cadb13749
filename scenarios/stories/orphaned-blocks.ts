import { scenario } from '../story/story.js';

export default scenario({
  title: 'The prefill worker that holds exported blocks freezes, and nobody frees them',
  after: 'Dynamo pull/7489: orphaned KV blocks',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ words: 400 });
    await story.until('transferring');
    await story.freeze('prefill-0', 4000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
