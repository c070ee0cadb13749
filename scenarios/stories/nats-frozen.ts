import { scenario } from '../story/story.js';

export default scenario({
  title: 'The broker freezes for two seconds',
  after: 'Dynamo 9.9: lease lost',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.freeze('nats', 2000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
  },
});
