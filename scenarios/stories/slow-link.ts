import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker is 60 ms away from the broker',
  after: 'Dynamo 9.14: custom network faults',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, links: true });
    await story.slowLink('decode-0', 60);
    await story.runLoad();
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.slowLink('decode-0', 0);
    await story.expectServes();
  },
});
