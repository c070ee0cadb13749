import { scenario } from '../story/story.js';

export default scenario({
  title: 'The broker is killed twice, the second time while it comes back',
  after: 'Dynamo 9.9: the sole etcd dies, everything shuts down',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2 });
    await story.runLoad({ tokens: 300 });
    await story.until('decoding');
    await story.restartNats();
    await story.restartNats();
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectServes();
  },
});
