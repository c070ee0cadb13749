import { scenario } from '../story/story.js';

export default scenario({
  title: 'The disk of the broker is full for some seconds',
  after: 'Dynamo 9.14: hardware faults',
  async tell(story) {
    await story.startNode({ prefill: 1, decode: 1, diskMiB: 64 });
    await story.runLoad({ tokens: 300 });
    await story.until('decoding');
    await story.fillDisk();
    await story.wait(1000);
    await story.freeDisk();
    await story.expectAllEnd(/503|unavailable|error/);
    await story.expectServes();
    await story.expectNoLeak();
  },
});
