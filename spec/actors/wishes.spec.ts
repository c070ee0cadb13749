/** What a request may ask of its workers, and what a router does when it cannot have it. */
import { expect } from 'chai';
import { createFleet, type Fleet, type FleetOptions, prepared, type Seen } from './fleet.js';

type Wishes = NonNullable<ReturnType<typeof prepared>['wishes']>;

const wishing = (wishes: Wishes, more: Parameters<typeof prepared>[0] = {}) => prepared({ ...more, wishes });
const ended = (fleet: Fleet, seen: Seen, ms = 60_000) => fleet.run(ms, () => seen.ends > 0);
const small = (over: Partial<FleetOptions> = {}): FleetOptions => ({
  prefill: 0,
  decode: 2,
  engine: { slots: 1 },
  ...over,
});
/** Workers that took the requests so far, in order. */
const takers = (fleet: Fleet) =>
  fleet.world.posted.flatMap((item) =>
    item.kind === 'command' && (item.type === 'Generate' || item.type === 'Reserve') ? [item.to.split('.')[1]] : [],
  );

describe('a request that names its workers', () => {
  for (const name of ['decode-1-a', 'decode-1']) {
    it(`is served by ${name} alone, however long it must wait for it`, async () => {
      const fleet = createFleet(small());
      await fleet.run(100);
      const all = [1, 2, 3].map(() => fleet.submit(wishing({ pin: { worker: name } })).seen);
      for (const seen of all) await ended(fleet, seen);
      expect(all.map(({ error }) => error)).to.deep.equal([undefined, undefined, undefined]);
      expect(new Set(takers(fleet))).to.deep.equal(new Set(['decode-1-a']));
    });
  }

  it('of a pair takes the halves it names, and the other half is free', async () => {
    const fleet = createFleet({ prefill: 2, decode: 2 });
    await fleet.run(100);
    for (const pin of [{ decode: 'decode-0-a', prefill: 'prefill-1-a' }, { worker: 'prefill-1-a' }]) {
      const { seen } = fleet.submit(wishing({ pin }));
      await ended(fleet, seen);
      expect(seen.error).to.equal(undefined);
      expect(fleet.placement('prefill')).to.equal('prefill-1-a');
    }
  });

  for (const pin of [
    { worker: 'decode-9' },
    { prefill: 'decode-0-a' },
    { decode: 'nobody' },
    { worker: 'decode-0-a', rank: 1 },
  ]) {
    it(`is told at once that there is no such worker: ${JSON.stringify(pin)}`, async () => {
      const fleet = createFleet(small());
      await fleet.run(100);
      const { seen } = fleet.submit(wishing({ pin }));
      await ended(fleet, seen, 50);
      expect(seen.error).to.include({ status: 404, code: 'no_such_worker' });
      expect(takers(fleet)).to.deep.equal([]);
    });
  }

  it('is told why its worker failed, not that no other may take it', async () => {
    const fleet = createFleet(small());
    await fleet.run(100);
    const { seen } = fleet.submit(wishing({ pin: { worker: 'decode-1-a' } }, { maxTokens: 1_000 }));
    await fleet.run(5_000, () => seen.texts[0] !== '');
    fleet.killWorker('decode-1-a');
    await ended(fleet, seen, 1_000);
    expect(seen.error).to.include({ status: 503, code: 'worker_down' });
  });

  it('is refused when nobody is as it asks for, and in mode direct when it names nobody', async () => {
    const fleet = createFleet(small());
    await fleet.run(100);
    const untainted = fleet.submit(wishing({ requiredTaints: ['gpu'] })).seen;
    const nobody = fleet.submit(wishing({ allowed: new Set(['decode-7']) })).seen;
    const direct = fleet.submit(wishing({ mode: 'direct' })).seen;
    await fleet.run(50);
    expect(untainted.error).to.include({ status: 503, code: 'wishes_unmet' });
    expect(nobody.error).to.include({ status: 503, code: 'wishes_unmet' });
    expect(direct.error).to.include({ status: 400, code: 'unpinned' });
    const some = fleet.submit(wishing({ allowed: new Set(['decode-1-a', 'decode-7']) })).seen;
    await ended(fleet, some);
    expect(takers(fleet)).to.deep.equal(['decode-1-a']);
  });

  it('as a dry run is answered with them, books nothing and is no request', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2 });
    await fleet.run(100);
    const { seen } = fleet.submit(wishing({ pin: { decode: 'decode-1-a' } }, { dryRun: true }));
    const lost = fleet.submit(wishing({ pin: { decode: 'gone' } }, { dryRun: true })).seen;
    await fleet.run(100);
    expect(seen.answer).to.include({ decode: 'decode-1-a', prefill: 'prefill-0-a' });
    expect([seen.ends, seen.usage?.completionTokens]).to.deep.equal([1, 0]);
    expect(lost.error).to.include({ status: 404 });
    expect(takers(fleet)).to.deep.equal([]);
    expect(await fleet.facts()).to.include({ accepted: 0, leaked: 0 });
  });
});

describe('a queue that is full of wishes', () => {
  it('serves the strictly prior first, then by priority in seconds, then by arrival', async () => {
    const fleet = createFleet(small({ decode: 1 }));
    const order: string[] = [];
    const asked: readonly (readonly [string, Wishes])[] = [
      ['running', {}],
      ['plain', {}],
      ['urgent', { priority: 5 }],
      ['strict', { strictPriority: 1 }],
    ];
    const all = asked.map(([name, wishes]) => ({ name, seen: fleet.submit(wishing(wishes)).seen }));
    await fleet.run(60_000, () => {
      for (const { name, seen } of all) if (seen.ends > 0 && !order.includes(name)) order.push(name);
      return order.length === all.length;
    });
    expect(order).to.deep.equal(['running', 'strict', 'urgent', 'plain']);
  });

  it('refuses over the limit of a class with 429 and over its own with 529, and both say when to come back', async () => {
    const classes = [
      { name: 'default', policy: 'fcfs' as const, quantum: 1 },
      { name: 'batch', policy: 'fcfs' as const, quantum: 1, family: 'batch', requestsPerWorker: 1 },
    ];
    const fleet = createFleet(small({ decode: 1, queue: { classes, limit: 2 } }));
    await fleet.run(100);
    const running = fleet.submit(prepared({ maxTokens: 1_000 })).seen;
    await fleet.run(20);
    const batch = [1, 2].map(() => fleet.submit(wishing({ class: 'batch' })).seen);
    const others = [1, 2].map(() => fleet.submit(prepared()).seen);
    await fleet.run(20);
    expect(batch[1]?.error).to.include({
      status: 429,
      code: 'class_full',
      type: 'rate_limit_error',
      retryAfterMs: 1_000,
    });
    expect(others[1]?.error).to.include({ status: 529, code: 'queue_full', retryAfterMs: 1_000 });
    expect((await fleet.routerFacts()).waiting).to.deep.include({ class: 'batch', waiting: 1 });
    expect((await fleet.routerFacts()).refused).to.deep.equal({ CLASS_FULL: 1, QUEUE_FULL: 1 });
    for (const seen of [running, batch[0], others[0]]) {
      await ended(fleet, seen as Seen);
      expect(seen?.error).to.equal(undefined);
    }
  });

  it('answers a request that has waited too long, and never runs it', async () => {
    const fleet = createFleet(small({ decode: 1, frontend: { queueMs: 500 } }));
    const long = fleet.submit(prepared({ maxTokens: 5_000 }));
    await fleet.run(50);
    const late = fleet.submit(prepared()).seen;
    await fleet.run(700);
    expect(late.error).to.include({ status: 503, code: 'queue_timeout' });
    fleet.gone(long.ticket);
    await fleet.run(1_000);
    expect(takers(fleet)).to.have.length(1);
    expect(await fleet.routerFacts()).to.include({ queued: 0 });
  });
});

describe('workers that are busy', () => {
  it('get no new requests; when all are, those are refused at once, and streams that stand go there all the same', async () => {
    const tuning = { requestLimit: 0, activePrefillTokensThreshold: 100 };
    const fleet = createFleet(small({ engine: { slots: 4, speedup: 0.2 }, tuning }));
    await fleet.run(100);
    const all = [1, 2, 3].map(() => fleet.submit(prepared({ maxTokens: 3 })).seen);
    await fleet.run(5);
    expect(all[2]?.error).to.include({ status: 529, code: 'all_busy', retryAfterMs: 1_000 });
    expect(new Set(takers(fleet)).size).to.equal(2);
    expect((await fleet.routerFacts()).busy).to.have.members(['decode-0-a', 'decode-1-a']);
    const pinned = fleet.submit(wishing({ pin: { worker: 'decode-0-a' } })).seen;
    await fleet.run(5);
    expect(pinned.error).to.include({ status: 529, code: 'pinned_busy' });
    fleet.killWorker('decode-0-a');
    for (const seen of all.slice(0, 2)) {
      await ended(fleet, seen);
      expect(seen.error, 'the one whose worker died is served by the busy one').to.equal(undefined);
    }
  });

  it('are no reason to refuse a prompt that its decode worker may compute', async () => {
    for (const [policy, refused] of [
      ['always', true],
      ['prefill_load', false],
    ] as const) {
      const tuning = { requestLimit: 0, activePrefillTokensThreshold: 100 };
      const disagg = { policy, prefillBusy: { tokens: 100 } };
      const fleet = createFleet({ prefill: 1, decode: 1, engine: { slots: 4, speedup: 0.2 }, tuning, disagg });
      await fleet.run(100);
      fleet.submit(prepared());
      await fleet.run(5);
      const { seen } = fleet.submit(prepared());
      await fleet.run(5);
      expect(seen.error?.code, policy).to.equal(refused ? 'all_busy' : undefined);
    }
  });

  it('are so as long as a threshold says, which may change at any time', async () => {
    const fleet = createFleet(small({ decode: 1, engine: { slots: 4, kvBlocks: 100, speedup: 1 } }));
    await fleet.run(100);
    const first = fleet.submit(prepared({ maxTokens: 1_000 })).seen;
    await fleet.run(50);
    fleet.tune({ activeDecodeBlocksThreshold: 0.01 });
    const refused = fleet.submit(prepared()).seen;
    await fleet.run(20);
    expect(refused.error).to.include({ code: 'all_busy' });
    fleet.tune({ activeDecodeBlocksThreshold: undefined, requestLimit: 1 });
    const waits = fleet.submit(prepared()).seen;
    await fleet.run(50);
    expect([waits.ends, (await fleet.routerFacts()).queued]).to.deep.equal([0, 1]);
    fleet.tune({ requestLimit: 0 });
    await ended(fleet, waits);
    expect([waits.error, first.ends]).to.deep.equal([undefined, 0]);
  });
});

describe('a session', () => {
  const sessions = { ttlMs: 10_000, limit: 100 };
  const inSession = (id: string) => wishing({ session: id }, { maxTokens: 5 });

  it('stays with its workers while it is used, in every mode', async () => {
    const fleet = createFleet({ prefill: 2, decode: 4, mode: 'round-robin', sessions });
    for (let turn = 0; turn < 4; turn++) {
      const { seen } = fleet.submit(inSession('s'));
      await ended(fleet, seen);
      await fleet.run(5_000);
    }
    expect(new Set(takers(fleet)).size).to.equal(1);
    expect((await fleet.routerFacts()).sessions).to.deep.equal({ size: 1, new: 1, kept: 3, moved: 0 });
    await fleet.run(11_000);
    await ended(fleet, fleet.submit(inSession('s')).seen);
    expect((await fleet.routerFacts()).sessions).to.include({ new: 2 });
  });

  it('keeps no prompt from its decode worker that is short there by now', async () => {
    const disagg = { policy: 'isl_bounding' as const, maxLocalTokens: 150 };
    const fleet = createFleet({ prefill: 2, decode: 2, sessions, disagg });
    const body = wishing({ session: 's' }, { maxTokens: 5 });
    for (let turn = 0; turn < 2; turn++) {
      await ended(fleet, fleet.submit(body).seen);
      await fleet.run(500);
    }
    expect((await fleet.routerFacts()).sessions).to.include({ kept: 1 });
    expect(new Set(takers(fleet)).size).to.equal(1);
    expect(fleet.commands.filter((type) => type === 'Reserve' || type === 'Generate')).to.deep.equal([
      'Reserve',
      'Generate',
    ]);
  });

  it('moves when its worker is full, and stays where it has moved', async () => {
    const fleet = createFleet(small({ mode: 'least-loaded', sessions }));
    await ended(fleet, fleet.submit(inSession('s')).seen);
    const home = takers(fleet)[0] as string;
    const long = fleet.submit(wishing({ pin: { worker: home } }, { maxTokens: 5_000 }));
    await fleet.run(50);
    await ended(fleet, fleet.submit(inSession('s')).seen);
    fleet.gone(long.ticket);
    await fleet.run(500);
    await ended(fleet, fleet.submit(inSession('s')).seen);
    const [, , moved, kept] = takers(fleet);
    expect(moved).not.to.equal(home);
    expect(kept).to.equal(moved);
    expect((await fleet.routerFacts()).sessions).to.include({ kept: 1, moved: 1 });
    const ids = fleet.summaries.map(({ id }) => id);
    const why = await Promise.all(ids.map(async (id) => (await fleet.explain(id)).at(-1)?.session));
    expect(why.filter((each) => each !== undefined)).to.deep.equal(['new', 'moved', 'kept']);
  });

  it('chooses anew when its worker is gone', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, sessions });
    await ended(fleet, fleet.submit(inSession('s')).seen);
    fleet.killWorker(takers(fleet)[0] as string);
    const { seen } = fleet.submit(inSession('s'));
    await ended(fleet, seen);
    expect(seen.error).to.equal(undefined);
    expect((await fleet.routerFacts()).sessions).to.deep.equal({ size: 1, new: 2, kept: 0, moved: 0 });
  });
});
