/** Each deadline of a request, passed by a fleet that is merely too slow for it: nobody is silent, nothing is lost. */
import { expect } from 'chai';
import type { FrontendConfig } from '../../actors/index.js';
import type { MockEngineOptions } from '../../gpu/index.js';
import { createFleet, prepared } from './fleet.js';

interface Case {
  readonly deadline: Partial<FrontendConfig>;
  readonly engine: Partial<MockEngineOptions>;
  /** As many as a request has attempts: it waits for nobody. */
  readonly decode: 1 | 4;
  /** Requests before it that take all slots. */
  readonly before?: number;
  readonly code: string;
  readonly status: number;
  readonly atMs: readonly [number, number];
}

const cases: Readonly<Record<string, Case>> = {
  queue: {
    deadline: { queueMs: 3_000 },
    decode: 1,
    engine: { speedup: 1, stepMs: 200, slots: 1 },
    before: 1,
    code: 'queue_timeout',
    status: 503,
    atMs: [3_000, 3_300],
  },
  'first token': {
    deadline: { firstTokenMs: 3_000, queueMs: 60_000 },
    decode: 4,
    engine: { speedup: 1, stepMs: 20_000 },
    code: 'first_token_timeout',
    status: 504,
    // Each of four attempts has its own.
    atMs: [12_000, 13_500],
  },
  'between tokens': {
    deadline: { betweenTokensMs: 2_000, queueMs: 60_000 },
    decode: 4,
    engine: { speedup: 1, stepMs: 5_000 },
    code: 'token_timeout',
    status: 504,
    // Every attempt takes a step for its first token and is then given up.
    atMs: [7_000, 40_000],
  },
  'whole request': {
    deadline: { totalMs: 5_000 },
    decode: 4,
    engine: { speedup: 1, stepMs: 200 },
    code: 'total_timeout',
    status: 504,
    atMs: [5_000, 5_300],
  },
};

describe('a request that takes too long', () => {
  for (const [name, { deadline, decode, engine, before = 0, code, status, atMs }] of Object.entries(cases)) {
    it(`ends by its deadline for the ${name}, which has a code of its own, and holds nothing`, async () => {
      const fleet = createFleet({ prefill: 0, decode, engine, frontend: deadline });
      for (let n = 0; n < before; n++) fleet.submit(prepared({ maxTokens: 200 }));
      await fleet.run(10);
      const { seen } = fleet.submit(prepared({ maxTokens: 200 }));
      const asked = fleet.world.now();
      await fleet.run(90_000, () => seen.ends > 0);
      expect(seen.error).to.include({ code, status });
      expect(fleet.world.now() - asked).to.be.within(...atMs);
      // Those before it have 200 tokens to go, and an engine ends what it has begun.
      await fleet.run(60_000);
      for (const [where, held] of Object.entries(await fleet.idle())) expect(held, `held by ${where}`).to.equal(0);
    });
  }
});
