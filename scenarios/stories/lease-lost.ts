import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker is cut off from the broker for longer than its lease',
  after: 'Dynamo issues/3493: a lost lease restarts everything',
  async tell(story) {
    await story.startNode({ prefill: 2, decode: 2, links: true, env: { DYNACT_NATS_LEASE_MS: '2000' } });
    await story.runLoad();
    await story.until('decoding');
    await story.partition('decode-0', 5000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectServes();
  },
});
