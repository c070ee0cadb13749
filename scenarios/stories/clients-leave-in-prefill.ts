import { scenario } from '../story/story.js';

export default scenario({
  title: 'Clients leave while their prompts are computed',
  after: 'Dynamo 9.3: cancellation during remote prefill; pull/14775: it is not propagated',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, stepMs: 0 });
    await story.runLoad({ words: 2000 });
    await story.until('prefilling');
    await story.leave(12);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
