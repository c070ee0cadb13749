import { scenario } from '../story/story.js';

export default scenario({
  title: 'All workers are replaced one after the other under load',
  after: 'Dynamo 9.13: rolling upgrade; issues/13559: scale-down aborts what is in flight',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ tokens: 400 });
    await story.until('decoding');
    await story.rollingRestart();
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectServes();
  },
});
