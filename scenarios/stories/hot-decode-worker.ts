import { scenario } from '../story/story.js';

export default scenario({
  title: 'All prompts begin alike: no decode worker gets them all',
  after: 'Dynamo issues/737: a shared system prompt makes one hot worker',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ streams: 16, words: 200, samePrefix: true, tokens: 300 });
    await story.until('decoding');
    await story.expectSpread('decode', 0.75);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
