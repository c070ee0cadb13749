import { scenario } from '../story/story.js';

export default scenario({
  title: 'The worker that a request was sent to never hears of it',
  after: 'Dynamo issues/13088: requests hang silently after worker selection',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, links: true });
    await story.runLoad({ streams: 32 });
    await story.partition('prefill-0', 4000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
