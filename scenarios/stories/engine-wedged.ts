import { scenario } from '../story/story.js';

export default scenario({
  title: 'An engine takes no further step behind a live event loop',
  after: 'Dynamo 9.11: engine health; issues/13429: stalled, still ready',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.wedge('decode-0');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectRestarts('decode-0', 1);
  },
});
