import { scenario } from '../story/story.js';

export default scenario({
  title: 'Sixty long prompts and four slots: what is computed waits for who takes it',
  after: 'Dynamo issues/1074: stuck in the prefill queue; transfer back-pressure',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 1, slots: 4, stepMs: 1 });
    await story.runLoad({ streams: 60, words: 400, tokens: 40 });
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
