import { scenario } from '../story/story.js';

export default scenario({
  title: 'The clocks of a worker and the gateway go an hour wrong, each its own way',
  after: 'Dynamo 9.14: custom faults',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.skewClock('decode-0', 3600000);
    await story.skewClock('gateway-0', -3600000);
    await story.runLoad();
    await story.until('decoding');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectServes();
  },
});
