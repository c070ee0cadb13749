// Mocha's spec reporter, plus the counts for .ci/test.mjs, and an end for a run that a forgotten handle keeps alive.
const { writeFileSync } = require('node:fs');
const { reporters, Runner } = require('mocha');

/** After the last spec everything has been stopped; what still keeps the loop alive is a leak. */
const LINGER_MS = 10_000;

module.exports = class CountingReporter extends reporters.Spec {
  constructor(runner, options) {
    super(runner, options);
    runner.once(Runner.constants.EVENT_RUN_END, () => {
      const { passes, failures, pending } = runner.stats;
      const file = process.env.DYNACT_SPEC_COUNTS;
      if (file) writeFileSync(file, JSON.stringify({ passed: passes, failed: failures, skipped: pending }));
      setTimeout(() => {
        console.error(
          `still open ${LINGER_MS / 1000} s after the last spec: ${process.getActiveResourcesInfo().join(', ')}`,
        );
        process.exit(1);
      }, LINGER_MS).unref();
    });
  }
};
