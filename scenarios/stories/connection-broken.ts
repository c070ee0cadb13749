import { scenario } from '../story/story.js';

export default scenario({
  title: 'The connection between a worker and the broker breaks and is refused for two seconds',
  after: 'Dynamo 9.14: partition between worker and NATS',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, links: true });
    await story.runLoad();
    await story.until('decoding');
    await story.cutLink('decode-0', 2000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
