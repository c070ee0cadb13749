import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker is asked to end while it answers',
  after: 'Dynamo 9.5: migration, graceful stop',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ tokens: 200 });
    await story.until('decoding');
    await story.terminate('decode-0');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
