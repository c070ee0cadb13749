import { scenario } from '../story/story.js';

export default scenario({
  title: 'The broker is killed and comes back while requests are answered',
  after: 'Dynamo 9.8: a leader is killed, serving continues',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.restartNats();
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectServes();
  },
});
