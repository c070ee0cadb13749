import { scenario } from '../story/story.js';

export default scenario({
  title: 'A decode worker freezes for five seconds: its lease runs out, and it comes back as a zombie',
  after: 'Dynamo 9.10: lease-loss zombie; 9.12: a paused rank',
  async tell(story) {
    await story.startNode({
      prefill: 2,
      decode: 2,
      env: { DYNACT_NODE_SILENT_MS: '20000', DYNACT_NATS_LEASE_MS: '2000' },
    });
    await story.runLoad();
    await story.until('decoding');
    await story.freeze('decode-0', 5000);
    await story.expectAllComplete();
    await story.expectTextEqualsBaseline();
    await story.expectNoLeak();
    await story.expectPauseUnder(4000);
  },
});
