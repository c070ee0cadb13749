import { scenario } from '../story/story.js';

export default scenario({
  title: 'An engine is wedged while nobody asks for anything, and the first requests find out',
  after: 'Dynamo 9.11: dead engine with traffic idle',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.wedge('decode-0');
    await story.runLoad();
    await story.until('decoding');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectRestarts('decode-0', 1);
  },
});
