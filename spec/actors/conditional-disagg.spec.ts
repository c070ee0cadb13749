/** Which prompts go to a prefill worker at all: decided by the router once it has chosen who decodes, and told to whoever asks why. */
import { expect } from 'chai';
import type { DisaggRouting } from '../../actors/index.js';
import { createFleet, type Fleet, type FleetOptions, prepared, type Seen } from './fleet.js';

const long = (from: number, tokens = 4_000) =>
  prepared({ prompt: Uint32Array.from({ length: tokens }, (_, i) => (from * 7_919 + i * 13) % 50_000), maxTokens: 10 });

const fleetOf = (disagg: Partial<DisaggRouting>, options: Partial<FleetOptions> = {}) =>
  createFleet({ prefill: 1, decode: 1, disagg, ...options });

async function ask(fleet: Fleet, body: ReturnType<typeof prepared>): Promise<Seen> {
  const { seen } = fleet.submit(body);
  await fleet.run(60_000, () => seen.ends > 0);
  expect(seen.error).to.equal(undefined);
  return seen;
}

/** Why the newest request went where it went. */
async function reason(fleet: Fleet): Promise<string | undefined> {
  const { id } = fleet.summaries.at(-1) ?? { id: '' };
  return (await fleet.explain(id)).at(-1)?.disagg?.reason;
}

describe('conditional disaggregation in a fleet', () => {
  it('computes a short prompt where it is decoded, in one command, and says so; a long one on a prefill worker', async () => {
    const fleet = fleetOf({ policy: 'isl_bounding' });
    const short = prepared();
    // Short by both bounds: fewer tokens than 2,048 are not enough while all of them are to be computed.
    await ask(fleet, short);
    expect(await reason(fleet)).to.equal('long');
    await ask(fleet, { ...short, maxTokens: 20 });
    expect(await reason(fleet)).to.equal('short');
    await ask(fleet, long(1));
    expect(await reason(fleet)).to.equal('long');
    expect(fleet.commands).to.deep.equal([
      ...['Reserve', 'Prefill', 'PrefillDone'],
      'Generate',
      ...['Reserve', 'Prefill', 'PrefillDone'],
    ]);
    await fleet.run(1_000);
    for (const [where, count] of Object.entries(await fleet.idle())) expect(count, where).to.equal(0);
  });

  it('gives the next turn of a conversation to the decode worker that has the turns before', async () => {
    const fleet = fleetOf({ policy: 'isl_bounding' });
    const first = long(2);
    await ask(fleet, first);
    const more = Uint32Array.from([...first.prompt, ...first.prompt.slice(0, 100)]);
    const seen = await ask(fleet, { ...first, prompt: more });
    expect(await reason(fleet)).to.equal('short');
    expect(seen.usage?.cachedTokens).to.be.at.least(3_900);
  });

  it('computes prompts where they are decoded while prefill workers have no time', async () => {
    const fleet = fleetOf({ policy: 'prefill_load', prefillBusy: { tokens: 4_000 } }, { engine: { speedup: 1 } });
    const all = [3, 4, 5, 6].map((from) => fleet.submit(long(from)).seen);
    await fleet.run(60_000, () => all.every(({ ends }) => ends > 0));
    expect(fleet.commands.filter((type) => type === 'Generate')).to.have.length(2);
    expect(fleet.commands.filter((type) => type === 'Reserve')).to.have.length(2);
    // The same in batches of the worker.
    const share = fleetOf(
      { policy: 'prefill_load', prefillBusy: { share: 4 } },
      { engine: { speedup: 1, batchTokens: 1_000 } },
    );
    const some = [3, 4, 5, 6].map((from) => share.submit(long(from)).seen);
    await share.run(60_000, () => some.every(({ ends }) => ends > 0));
    expect(share.commands.filter((type) => type === 'Generate')).to.have.length(2);
    // None of them has room at all.
    const full = fleetOf({ policy: 'prefill_load' }, { decode: 2, engine: { slots: 2, speedup: 1 } });
    const many = Array.from({ length: 4 }, (_, i) => full.submit(long(10 + i)).seen);
    await full.run(60_000, () => many.every(({ ends }) => ends > 0));
    expect(full.commands.filter((type) => type === 'Generate')).to.have.length(1);
  });

  it('waits for a prefill worker rather than computing on a decode worker that is too full', async () => {
    const disagg = { policy: 'isl_bounding', decodeBusyShare: 0.5, maxLocalShare: 1 } as const;
    const fleet = fleetOf(disagg, { engine: { speedup: 1, kvBlocks: 16 } });
    const half = long(20, 9 * 64);
    // Its share of the prompt to compute is below 1 only with some of it in the cache.
    await ask(fleet, half);
    const { seen } = fleet.submit({ ...half, maxTokens: 12 });
    await fleet.run(60_000, () => seen.ends > 0);
    expect(await reason(fleet)).to.equal('decode-busy');
    expect(fleet.commands.filter((type) => type === 'Prefill')).to.have.length(2);
    const roomy = fleetOf(disagg, { engine: { speedup: 1, kvBlocks: 64 } });
    await ask(roomy, half);
    await ask(roomy, { ...half, maxTokens: 12 });
    expect(await reason(roomy)).to.equal('short');
  });

  it('says that the decode worker decides in the other flow, and nothing where there is no prefill worker', async () => {
    const decodeFirst = fleetOf({ flow: 'decode-first' });
    await ask(decodeFirst, prepared());
    expect(await reason(decodeFirst)).to.equal('decode-first');
    const alone = fleetOf({}, { prefill: 0 });
    await ask(alone, prepared());
    expect(await reason(alone)).to.equal(undefined);
  });
});
