import { scenario } from '../story/story.js';

export default scenario({
  title: 'The gateway loses the broker for three seconds',
  after: 'Dynamo 9.14: partition between frontend and workers',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, links: true });
    await story.runLoad();
    await story.until('decoding');
    await story.partition('gateway-0', 3000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
