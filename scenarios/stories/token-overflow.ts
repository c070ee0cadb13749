import { scenario } from '../story/story.js';

export default scenario({
  title: 'Prompts of twice the context are refused, the others are served',
  after: 'Dynamo 9.13: token overflow with recovery',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, flags: ['--context-tokens', '1024'] });
    await story.runLoad({ streams: 8, words: 2048 });
    await story.expectAllEnd(/400/);
    await story.expectRefused(/400/, 8);
    await story.expectServes();
    await story.expectNoLeak();
  },
});
