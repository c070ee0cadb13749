import { scenario } from '../story/story.js';

export default scenario({
  title: 'Clients leave while the KV of their prompts is handed over',
  after: 'Dynamo 9.4: cancellation during KV transfer',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ words: 120 });
    await story.until('transferring');
    await story.leave(8);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
