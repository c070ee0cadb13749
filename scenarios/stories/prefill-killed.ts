import { scenario } from '../story/story.js';

export default scenario({
  title: 'A prefill worker is killed while it computes prompts',
  after: 'Dynamo 9.6: the prefill worker dies',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, stepMs: 0 });
    await story.runLoad({ words: 2000, tokens: 60 });
    await story.until('prefilling');
    await story.kill('prefill-0');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectRestarts('prefill-0', 1);
  },
});
