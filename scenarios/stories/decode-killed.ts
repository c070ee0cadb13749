import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker is killed while it answers',
  after: 'Dynamo 9.5: migration, a worker is killed',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad();
    await story.until('decoding');
    await story.kill('decode-0');
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectRestarts('decode-0', 1);
  },
});
