import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker is killed while prompts are handed to it',
  after: 'Dynamo 9.6: death during KV transfer; pull/7489: it leaks blocks',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ words: 120 });
    await story.until('transferring');
    await story.kill('decode-0');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
