import { expect } from 'chai';
import fc from 'fast-check';
import {
  decideAgain,
  decodeRoutes,
  encodeRoutes,
  type RouteRecord,
  routeBatchBytes,
  type SelectionMode,
} from '../../actors/index.js';
import { costConfig } from '../../actors/router/cost.js';
import { type Decision, decide, type SelectionCandidate, selectionModes } from '../../actors/router/select.js';
import { encodeCbor } from '../../transport/index.js';
import { createFleet, type FleetOptions, prepared } from './fleet.js';

const tokens = (seed: number, length: number) =>
  Uint32Array.from({ length }, (_, i) => (Math.imul(seed * 65_537 + i + 1, 2_654_435_761) >>> 8) % 50_000);

/** A fleet that is asked much by few, with workers that come and go, and what its router wrote down. */
async function taped(options: Partial<FleetOptions>) {
  const records: RouteRecord[] = [];
  const began: RouteRecord[] = [];
  const fleet = createFleet({
    prefill: 3,
    decode: 3,
    engine: { slots: 2 },
    tape: { decided: (record) => void records.push(record), began: (record) => void began.push(record) },
    ...options,
  });
  const seen = Array.from({ length: 24 }, (_, i) => {
    const prompt = tokens(i % 5, 200 + 64 * (i % 7));
    return fleet.submit({ ...prepared(), prompt, maxTokens: 3 + (i % 4) }).seen;
  });
  await fleet.run(8);
  fleet.killWorker(fleet.placement('decode') ?? 'decode-1-a');
  if (options.prefill !== 0) fleet.freeze('prefill-2-a');
  await fleet.run(60_000, () => seen.every(({ ends }) => ends > 0));
  return { records, began, fleet };
}

const made = (records: readonly RouteRecord[]) => records.flatMap(({ decisions }) => decisions);

describe('decisions on the tape', () => {
  for (const [mode, prefill] of [
    ['kv', 3],
    ['kv', 0],
    ['round-robin', 3],
    ['random', 3],
    ['power-of-two', 3],
    ['least-loaded', 3],
  ] as const) {
    it(`of mode ${mode} with ${prefill} prefill workers hold everything: made again, each comes out the same`, async () => {
      const { records, began } = await taped({ mode, prefill });
      const read = decodeRoutes(encodeRoutes({ gateway: 'g', dropped: 3, records, began }));
      expect(read).to.deep.include({ gateway: 'g', dropped: 3 });
      expect(records.length).to.be.greaterThan(24);
      // What the worker's cache had is told on its own.
      const decided = records.map(({ cachedTokens: _, ...rest }) => ({
        disagg: undefined,
        session: undefined,
        ...rest,
      }));
      const had = read?.records.map((record) => ({ disagg: undefined, session: undefined, ...record }));
      expect(JSON.stringify(had)).to.equal(JSON.stringify(decided.map((each) => ({ ...each }))));
      expect(read?.began.map(({ id, cachedTokens }) => [id, cachedTokens])).to.deep.equal(
        began.map(({ id, cachedTokens }) => [id, cachedTokens]),
      );
      const again = made(read?.records ?? []).map(decideAgain);
      expect(again.map(({ chosen }) => chosen)).to.deep.equal(made(records).map(({ chosen }) => chosen));
      expect(again.map(({ excluded }) => excluded)).to.deep.equal(made(records).map(({ excluded }) => excluded));
      // Not for want of a choice.
      expect(new Set(made(records).map(({ chosen }) => chosen)).size).to.be.greaterThan(1);
      expect(new Set(made(records).flatMap(({ excluded }) => excluded.map(({ reason }) => reason))).size).to.be.above(
        0,
      );
    });
  }

  it('are found by request, each of its attempts', async () => {
    const { records, began } = await taped({});
    const { id } = records.find(({ attempt }) => attempt === 2) as RouteRecord;
    const read = decodeRoutes(encodeRoutes({ gateway: 'g', dropped: 0, records, began }), id);
    expect(read?.records.map((record) => record.attempt)).to.include.members([1, 2]);
    expect(read?.records.every((record) => record.id === id)).to.equal(true);
  });

  it('come out the same for any workers, costs, taints and draws', () => {
    const amount = fc.integer({ min: 0, max: 40 });
    const worker = fc.record({
      overlap: fc.record({ device: amount, host: amount, disk: amount }),
      load: fc.record({
        prefillTokens: fc.oneof(amount, fc.constant(undefined)),
        decodeBlocks: fc.double({ min: 0, max: 50, noNaN: true }),
        additionalBlocks: amount,
        requests: amount,
      }),
      capacity: fc.integer({ min: 1, max: 40 }),
      taints: fc.subarray(['a', 'b']),
      barred: fc.constantFrom(undefined, undefined, 'full' as const, 'inhibited' as const),
    });
    fc.assert(
      fc.property(
        fc.constantFrom<SelectionMode>(...selectionModes),
        fc.array(worker, { maxLength: 12 }),
        fc.record({ turn: fc.nat(1_000), draw: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }) }),
        fc.constantFrom(0, 0.5),
        fc.constantFrom(undefined, 'worker-1'),
        fc.constantFrom(undefined, ['a']),
        (mode, workers, chance, routerTemperature, pinned, requiredTaints) => {
          const candidates = workers.map(
            (each, index): SelectionCandidate => ({ incarnation: `worker-${index}`, rank: 0, ...each }),
          );
          const pin = pinned === undefined ? undefined : { worker: pinned };
          const wishes = { phase: 'prefill' as const, promptTokens: 700, blockTokens: 64, pin, requiredTaints };
          const asked = { ...wishes, preferredTaints: { a: 1, b: -1 } };
          const decision = decide(mode, asked, candidates, costConfig({ routerTemperature }), chance);
          const record: RouteRecord = {
            id: 'r',
            attempt: 1,
            at: 0,
            decisions: [decision],
            placed: undefined,
            expectedTokens: 0,
          };
          const read = decodeRoutes(encodeRoutes({ gateway: 'g', dropped: 0, records: [record], began: [] }));
          const [again] = made(read?.records ?? []).map(decideAgain) as [Decision];
          expect(again.chosen).to.equal(decision.chosen);
          expect(again.candidates.map(({ incarnation }) => incarnation)).to.deep.equal(
            decision.candidates.map(({ incarnation }) => incarnation),
          );
        },
      ),
    );
  });

  it('are nothing at all where they are damaged, too long or of another version', () => {
    const good = encodeRoutes({ gateway: 'g', dropped: 0, records: [], began: [] });
    expect(decodeRoutes(good)).to.not.equal(undefined);
    expect(decodeRoutes(good.subarray(0, good.length - 1))).to.equal(undefined);
    expect(decodeRoutes(encodeCbor({ v: 2, gateway: 'g' }))).to.equal(undefined);
    expect(decodeRoutes(new Uint8Array(routeBatchBytes + 1))).to.equal(undefined);
  });

  it('take about 25 bytes for each worker that was compared', () => {
    const workers = Array.from({ length: 64 }, (_, index): SelectionCandidate => {
      const load = { prefillTokens: index * 700, decodeBlocks: index * 40.5, additionalBlocks: 12, requests: index };
      const overlap = { device: index, host: 0, disk: 0 };
      return { incarnation: `prefill-${index}-0abcdef0`, rank: 0, overlap, load, capacity: 64, taints: [] };
    });
    const wishes = { phase: 'prefill' as const, promptTokens: 12_000, blockTokens: 64 };
    const decisions = [decide('kv', wishes, workers, costConfig(), { turn: 9, draw: 0.123 })];
    const record = { id: 'r', attempt: 1, at: 0, decisions, placed: undefined, expectedTokens: 0 };
    const bytes = (count: number) =>
      encodeRoutes({ gateway: 'g', dropped: 0, records: Array(count).fill(record), began: [] }).length;
    expect((bytes(16) - bytes(1)) / 15 / 64).to.be.below(25);
  });
});
