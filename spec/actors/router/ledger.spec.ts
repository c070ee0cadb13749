import { expect } from 'chai';
import fc from 'fast-check';
import { type Entry, Ledger } from '../../../actors/router/ledger.js';

const blockTokens = 16;

/** Chained: the hash of block i says which blocks are before it. */
const chain = (family: number, blocks: number) =>
  BigUint64Array.from({ length: blocks }, (_, index) => BigInt(family * 1_000 + index));

const entry = (more: Partial<Entry> = {}): Entry => ({
  origin: 'g1',
  num: 1,
  attempt: 1,
  incarnation: 'w1',
  units: 1,
  prefillTokens: 40,
  promptTokens: 40,
  hashes: chain(1, 2),
  at: 0,
  ...more,
});

describe('the ledger of running sequences', () => {
  it('counts a dispatch at once and frees it exactly once', () => {
    const ledger = new Ledger(blockTokens);
    expect(ledger.add(entry())).to.equal(true);
    expect(ledger.add(entry())).to.equal(false);
    expect(ledger.load('w1')).to.deep.equal({ units: 1, requests: 1, prefillTokens: 40, blocks: 3 });
    expect(ledger.free(entry())).to.equal(true);
    expect(ledger.free(entry())).to.equal(false);
    expect(ledger.load('w1')).to.deep.equal({ units: 0, requests: 0, prefillTokens: 0, blocks: 0 });
  });

  it('ends the prefill load at the first token, once', () => {
    const ledger = new Ledger(blockTokens);
    ledger.add(entry());
    ledger.add(entry({ num: 2 }));
    ledger.prefillDone(entry());
    ledger.prefillDone(entry());
    expect(ledger.load('w1').prefillTokens).to.equal(40);
    ledger.free(entry());
    expect(ledger.load('w1').prefillTokens).to.equal(40);
  });

  it('counts prompt blocks that several sequences share once, and says how many a prompt would add', () => {
    const ledger = new Ledger(blockTokens);
    ledger.add(entry({ hashes: chain(1, 4), promptTokens: 64 }));
    ledger.add(entry({ num: 2, hashes: chain(1, 6), promptTokens: 100 }));
    expect(ledger.load('w1').blocks).to.equal(6 + 1);
    expect(ledger.additionalBlocks('w1', chain(1, 8), 130)).to.equal(2 + 1);
    expect(ledger.additionalBlocks('w1', chain(2, 8), 128)).to.equal(8);
    expect(ledger.additionalBlocks('w2', chain(1, 8), 130)).to.equal(9);
  });

  it('grows with the output, and never shrinks', () => {
    const ledger = new Ledger(blockTokens);
    ledger.add(entry());
    ledger.grown(entry(), 8);
    expect(ledger.load('w1').blocks).to.equal(3);
    ledger.grown(entry(), 9);
    expect(ledger.load('w1').blocks).to.equal(4);
    ledger.grown(entry(), 1);
    expect(ledger.load('w1').blocks).to.equal(4);
  });

  it('gives up all entries of a router that is gone and keeps those of others', () => {
    const ledger = new Ledger(blockTokens);
    ledger.add(entry());
    ledger.add(entry({ origin: 'g2' }));
    expect(ledger.freeWhere(({ origin }) => origin === 'g2')).to.equal(1);
    expect(ledger.entriesOf('g1')).to.have.length(1);
    expect(ledger.load('w1').requests).to.equal(1);
  });

  it('agrees with a plain count after any sequence of calls', () => {
    const keys = fc.record({
      origin: fc.constantFrom('g1', 'g2'),
      num: fc.integer({ min: 1, max: 4 }),
      attempt: fc.integer({ min: 1, max: 2 }),
      incarnation: fc.constantFrom('w1', 'w2'),
    });
    const action = fc.record({
      do: fc.constantFrom('add', 'done', 'grow', 'free' as const),
      key: keys,
      family: fc.integer({ min: 0, max: 2 }),
      blocks: fc.integer({ min: 0, max: 5 }),
      tokens: fc.integer({ min: 0, max: 40 }),
    });
    fc.assert(
      fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
        const ledger = new Ledger(blockTokens);
        const model = new Map<string, { entry: Entry; prefilling: boolean; output: number }>();
        for (const { do: what, key, family, blocks, tokens } of actions) {
          const name = JSON.stringify(key);
          const known = model.get(name);
          if (what === 'add') {
            const promptTokens = blocks * blockTokens + (tokens % blockTokens);
            const made = entry({ ...key, hashes: chain(family, blocks), promptTokens, prefillTokens: tokens });
            expect(ledger.add(made)).to.equal(known === undefined);
            if (known === undefined) model.set(name, { entry: made, prefilling: true, output: 0 });
          } else if (what === 'done') {
            ledger.prefillDone(key);
            if (known) known.prefilling = false;
          } else if (what === 'grow') {
            ledger.grown(key, tokens);
            if (known) known.output = Math.max(known.output, tokens);
          } else {
            expect(ledger.free(key)).to.equal(known !== undefined);
            model.delete(name);
          }
        }
        for (const incarnation of ['w1', 'w2']) {
          const held = [...model.values()].filter((each) => each.entry.incarnation === incarnation);
          const shared = new Set(held.flatMap((each) => [...each.entry.hashes]));
          const tails = held.map(
            (each) => Math.ceil((each.entry.promptTokens + each.output) / blockTokens) - each.entry.hashes.length,
          );
          expect(ledger.load(incarnation)).to.deep.equal({
            units: held.length,
            requests: held.length,
            prefillTokens: held.reduce((sum, each) => sum + (each.prefilling ? each.entry.prefillTokens : 0), 0),
            blocks: shared.size + tails.reduce((sum, tail) => sum + tail, 0),
          });
        }
      }),
      { numRuns: 300 },
    );
  });
});
