import { scenario } from '../story/story.js';

export default scenario({
  title: 'Clients stop reading for two seconds in the middle of their answers',
  after: 'Dynamo pull/7910: many streams',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ tokens: 400, pauseReadingMs: 2000 });
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
