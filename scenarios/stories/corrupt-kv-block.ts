import { scenario } from '../story/story.js';

export default scenario({
  title: 'A block of KV arrives with other bytes than it was sent with',
  after: 'Dynamo issues/5068: wrong output',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.corruptKvBlock('prefill-0');
    await story.corruptKvBlock('prefill-1');
    await story.runLoad({ words: 200 });
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
