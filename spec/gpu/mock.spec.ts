import { expect } from 'chai';
import fc from 'fast-check';
import {
  createMockEngine,
  type Engine,
  type EngineClock,
  type EngineError,
  type EngineRequest,
  type EngineStep,
  type MockEngineOptions,
  openMockVocabulary,
} from '../../gpu/index.js';
import { decodeMs, prefillMs } from '../../gpu/mock/timing.js';
import type { BlockRef, Handoff, Sampling } from '../../transport/index.js';

const sampling: Sampling = {
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  frequencyPenalty: 0,
  presencePenalty: 0,
  repetitionPenalty: 1,
  logitBias: [],
  seed: 42,
};

function prompt(length: number, salt = 0): Uint32Array {
  return Uint32Array.from({ length }, (_, i) => 600 + ((i * 31 + salt * 7919) % 40_000));
}

function request(key: number, changes: Partial<EngineRequest> = {}): EngineRequest {
  return {
    key,
    prompt: prompt(150),
    choices: [{ index: 0, generated: new Uint32Array(0) }],
    sampling,
    maxTokens: 20,
    minTokens: 0,
    ignoreEos: false,
    logprobs: 0,
    cacheSalt: '',
    ...changes,
  };
}

/** Virtual time: `run` fires what is due, in order, until nothing is left or `until` says so. */
function virtualClock(): EngineClock & { run(until?: () => boolean): void } {
  let now = 0;
  let order = 0;
  let due: { at: number; order: number; run: () => void }[] = [];
  const setTimer = (ms: number, run: () => void): (() => void) => {
    const entry = { at: now + ms, order: order++, run };
    due.push(entry);
    return () => {
      due = due.filter((other) => other !== entry);
    };
  };
  return {
    now: () => now,
    setTimer,
    yield: (run) => setTimer(0, run),
    run(until = () => false) {
      for (let turns = 0; due.length > 0 && !until(); turns += 1) {
        if (turns > 100_000) throw new Error('the clock never runs dry');
        due.sort((a, b) => a.at - b.at || a.order - b.order);
        const next = due.shift();
        now = Math.max(now, next?.at ?? now);
        next?.run();
      }
    },
  };
}

/** What an engine said, gathered. */
function listen(engine: Engine): {
  readonly steps: EngineStep[];
  tokens(key: number, choice?: number): number[];
  ended(key: number): boolean;
  failure(key: number): EngineError | undefined;
} {
  const steps: EngineStep[] = [];
  engine.start({ step: (step) => steps.push(step), died: () => {} });
  const of = (key: number, choice: number) =>
    steps.flatMap((step) => step.tokens.filter((token) => token.key === key && token.choice === choice));
  return {
    steps,
    tokens: (key, choice = 0) =>
      of(key, choice)
        .filter((token) => token.token >= 0)
        .map((token) => token.token),
    ended: (key) => of(key, 0).some((token) => token.finish !== 0),
    failure: (key) => steps.flatMap((step) => step.failed).find((failed) => failed.key === key),
  };
}

function fleet(options: Partial<MockEngineOptions> = {}, names = ['p', 'd']) {
  const clock = virtualClock();
  const engines = names.map((owner) => createMockEngine({ owner, clock, transfer: 'memory', ...options }));
  const heard = engines.map(listen);
  return {
    clock,
    engines: engines as [Engine, Engine],
    heard: heard as [ReturnType<typeof listen>, ReturnType<typeof listen>],
  };
}

function alone(work: EngineRequest, options: Partial<MockEngineOptions> = {}): number[][] {
  const { clock, engines, heard } = fleet(options, ['alone']);
  expect(engines[0].generate(work)).to.deep.equal({ ok: true });
  clock.run();
  return work.choices.map((choice) => heard[0].tokens(work.key, choice.index));
}

const handoff = (engine: Engine, work: EngineRequest, firstBlock: number, blocks: readonly BlockRef[]): Handoff => ({
  pool: engine.pool as Handoff['pool'],
  fingerprint: engine.card.fingerprint,
  kvType: engine.card.kvType,
  layout: engine.card.kvLayout,
  blockTokens: engine.card.blockTokens,
  promptTokens: work.prompt.length,
  firstBlock,
  blocks: [...blocks],
  leaseMs: 60_000,
});

/** Runs prefill on P and returns what P would send to D. */
function prefilled(
  { clock, engines, heard }: ReturnType<typeof fleet>,
  work: EngineRequest,
  haveBlocks: number,
): { descriptor: Handoff; first: { choice: number; token: number; finished: boolean }[] } {
  const [p] = engines;
  expect(p.prefill(work, haveBlocks, 60_000)).to.deep.equal({ ok: true });
  const done = () => heard[0].steps.some((step) => step.prefilled.some((entry) => entry.key === work.key));
  clock.run(done);
  expect(done()).to.equal(true);
  const blocks = heard[0].steps
    .flatMap((step) => step.exported.filter((entry) => entry.key === work.key))
    .flatMap((entry) => entry.blocks);
  const tokens = heard[0].steps.flatMap((step) => step.tokens.filter((token) => token.key === work.key));
  return {
    descriptor: handoff(p, work, haveBlocks, blocks),
    first: tokens.map(({ choice, token, finish }) => ({ choice, token, finished: finish !== 0 })),
  };
}

function reserve(engine: Engine, work: EngineRequest): number {
  const verdict = engine.reserve(work);
  if (!verdict.ok) throw new Error(verdict.message);
  return verdict.haveBlocks;
}

describe('mock engine', () => {
  it('says the same alone, in a batch, from the cache, with two choices and in small prefill chunks', () => {
    const expected = alone(request(1));
    expect(expected[0]).to.have.length(20);
    const { clock, engines, heard } = fleet({ batchTokens: 64 }, ['one']);
    for (let key = 1; key <= 8; key += 1)
      engines[0].generate(request(key, { prompt: prompt(150, key === 1 ? 0 : key) }));
    clock.run();
    engines[0].generate(request(100));
    engines[0].generate(request(101, { choices: [0, 1].map((index) => ({ index, generated: new Uint32Array(0) })) }));
    clock.run();
    expect(heard[0].tokens(1)).to.deep.equal(expected[0]);
    expect(heard[0].tokens(100)).to.deep.equal(expected[0]);
    expect(heard[0].steps.flatMap((step) => step.progress).find((entry) => entry[0] === 100)?.[3]).to.equal(128);
    expect(heard[0].tokens(101)).to.deep.equal(expected[0]);
    expect(heard[0].tokens(101, 1)).to.not.deep.equal(expected[0]);
    expect(heard[0].tokens(2)).to.not.deep.equal(expected[0]);
  });

  it('goes on after a migration as if nothing had happened, wherever the cut was', () => {
    const [whole] = alone(request(1)) as [number[]];
    for (const cut of [1, 7, 19, 20]) {
      const choices = [{ index: 0, generated: Uint32Array.from(whole.slice(0, cut)) }];
      expect(alone(request(2, { choices }))[0], `cut at ${cut}`).to.deep.equal(whole.slice(cut));
    }
  });

  it('says the same when prefill and decode are on two engines, for any prompt, choices, cached prefix and cut', () => {
    fc.assert(
      fc.property(
        fc.record({
          length: fc.integer({ min: 1, max: 300 }),
          maxTokens: fc.integer({ min: 1, max: 30 }),
          choices: fc.integer({ min: 1, max: 3 }),
          cut: fc.nat({ max: 5 }),
          warm: fc.boolean(),
          early: fc.boolean(),
          batchTokens: fc.constantFrom(64, 100, 8192),
        }),
        ({ length, maxTokens, choices, cut, warm, early, batchTokens }) => {
          const plain = request(1, {
            prompt: prompt(length),
            maxTokens,
            choices: Array.from({ length: choices }, (_, index) => ({ index, generated: new Uint32Array(0) })),
          });
          const expected = alone(plain);
          const work: EngineRequest = {
            ...plain,
            choices: plain.choices.map((choice) => ({
              ...choice,
              generated: choice.index === 1 ? Uint32Array.from((expected[1] ?? []).slice(0, cut)) : choice.generated,
            })),
          };
          const two = fleet({ batchTokens });
          const [p, d] = two.engines;
          if (warm) {
            d.generate({ ...plain, key: 9, prompt: plain.prompt.slice(0, Math.ceil(length / 2)) });
            two.clock.run();
          }
          const have = reserve(d, work);
          expect(have).to.equal(warm ? Math.floor(Math.ceil(length / 2) / 64) : 0);
          const { descriptor, first } = prefilled(two, work, have);
          if (early) expect(d.pull(1, descriptor.pool, descriptor.blocks.slice(0, 1))).to.deep.equal({ ok: true });
          expect(d.commit(1, descriptor, first)).to.deep.equal({ ok: true });
          two.clock.run();
          expect(two.heard[1].failure(1)).to.equal(undefined);
          for (const choice of work.choices) {
            const head = first.filter((entry) => entry.choice === choice.index).map((entry) => entry.token);
            const said = [...choice.generated, ...head, ...two.heard[1].tokens(1, choice.index)];
            expect(said).to.deep.equal(expected[choice.index]);
          }
          p.release(1);
          expect(p.load()).to.include({ busySlots: 0, usedKvBlocks: 0, exportedBlocks: 0, waiting: 0 });
          expect(d.load()).to.include({ busySlots: 0, usedKvBlocks: 0, waiting: 0 });
        },
      ),
      { numRuns: 150 },
    );
  });

  describe('refuses a hand-off', () => {
    const wrong: Record<string, (descriptor: Handoff) => Handoff> = {
      'with another fingerprint': (h) => ({ ...h, fingerprint: 'other' }),
      'with KV of another type': (h) => ({ ...h, kvType: 'f16' }),
      'with another layout': (h) => ({ ...h, layout: 'other' }),
      'with another block size': (h) => ({ ...h, blockTokens: 32 }),
      'of another prompt length': (h) => ({ ...h, promptTokens: h.promptTokens + 1 }),
      'with its first block missing': (h) => ({ ...h, firstBlock: 1, blocks: h.blocks.slice(1) }),
      'with a hole': (h) => ({ ...h, blocks: h.blocks.filter((_, at) => at !== 1) }),
      'with its last block missing': (h) => ({ ...h, blocks: h.blocks.slice(0, -1) }),
      'with two blocks swapped': (h) => ({ ...h, blocks: [1, 0, 2].map((at) => h.blocks[at] as BlockRef) }),
      'with a block of another prompt': (h) => ({
        ...h,
        blocks: h.blocks.map((block, at) => (at === 1 ? { ...block, hash: '0123456789abcdef' } : block)),
      }),
      'with a wrong checksum': (h) => ({
        ...h,
        blocks: h.blocks.map((block, at) => (at === 2 ? { ...block, checksum: '0123456789abcdef' } : block)),
      }),
      'with bytes of another block': (h) => ({
        ...h,
        blocks: h.blocks.map((block, at) => (at === 0 ? { ...block, offset: h.blocks[1]?.offset ?? 0 } : block)),
      }),
      'with a block cut short': (h) => ({
        ...h,
        blocks: h.blocks.map((block, at) => (at === 0 ? { ...block, bytes: block.bytes - 4 } : block)),
      }),
    };
    for (const [name, change] of Object.entries(wrong)) {
      it(`${name}, serves nothing from it, and gives everything back`, () => {
        const two = fleet();
        const work = request(1);
        reserve(two.engines[1], work);
        const { descriptor, first } = prefilled(two, work, 0);
        expect(two.engines[1].commit(1, change(descriptor), first)).to.deep.equal({ ok: true });
        two.clock.run();
        expect(two.heard[1].failure(1)?.code).to.equal('GPU_HANDOFF_MISMATCH');
        expect(two.heard[1].tokens(1)).to.deep.equal([]);
        expect(two.engines[1].load()).to.include({ busySlots: 0, usedKvBlocks: 0 });
      });
    }

    it('whose pool is gone', async () => {
      const two = fleet();
      reserve(two.engines[1], request(1));
      const { descriptor, first } = prefilled(two, request(1), 0);
      await two.engines[0].stop();
      two.engines[1].commit(1, descriptor, first);
      two.clock.run();
      expect(two.heard[1].failure(1)?.code).to.equal('GPU_HANDOFF_GONE');
    });

    it('whose lease ran out: the blocks are free, and what is there now fails its checksum', () => {
      const two = fleet({ poolBlocks: 3 });
      reserve(two.engines[1], request(1));
      const { descriptor, first } = prefilled(two, request(1), 0);
      two.clock.run();
      expect(two.engines[0].load().exportedBlocks).to.equal(0);
      prefilled(two, request(2, { prompt: prompt(150, 5) }), 0);
      two.engines[1].commit(1, descriptor, first);
      two.clock.run(() => two.heard[1].steps.length > 0);
      expect(two.heard[1].failure(1)?.code).to.equal('GPU_HANDOFF_MISMATCH');
    });

    it('that nobody reserved, or that lacks a first token', () => {
      const two = fleet();
      const { descriptor, first } = prefilled(two, request(1), 0);
      expect(two.engines[1].commit(1, descriptor, first)).to.include({ ok: false, code: 'GPU_UNKNOWN_KEY' });
      reserve(two.engines[1], request(1));
      expect(two.engines[1].commit(1, descriptor, [])).to.include({ ok: false, code: 'GPU_BAD_REQUEST' });
      expect(two.engines[1].pull(2, descriptor.pool, [])).to.include({ ok: false, code: 'GPU_UNKNOWN_KEY' });
    });
  });

  it('keeps its bounds: slots, then the waiting line, then GPU_FULL', () => {
    const { clock, engines, heard } = fleet({ slots: 2, waiting: 2 }, ['one']);
    const verdicts = [1, 2, 3].map((key) => engines[0].generate(request(key)));
    // The first iteration has not begun: all three wait, and two slots are free for them.
    expect(verdicts.every((verdict) => verdict.ok)).to.equal(true);
    clock.run(() => heard[0].steps.length > 0);
    expect(engines[0].load()).to.include({ busySlots: 2, waiting: 1 });
    expect(engines[0].generate(request(4)).ok).to.equal(true);
    expect(engines[0].generate(request(5))).to.include({ ok: false, code: 'GPU_FULL' });
    expect(engines[0].reserve(request(6))).to.include({ ok: false, code: 'GPU_FULL' });
    clock.run();
    for (const key of [1, 2, 3, 4]) expect(heard[0].tokens(key)).to.have.length(20);
    expect(engines[0].load()).to.include({ busySlots: 0, waiting: 0, usedKvBlocks: 0 });
  });

  it('never uses more KV than it has, and every admitted request ends', () => {
    const { clock, engines, heard } = fleet({ kvBlocks: 8, slots: 16 }, ['one']);
    for (let key = 1; key <= 10; key += 1) engines[0].generate(request(key, { prompt: prompt(150, key) }));
    clock.run(() => {
      expect(engines[0].load().usedKvBlocks).to.be.at.most(8);
      return false;
    });
    for (let key = 1; key <= 10; key += 1) expect(heard[0].ended(key)).to.equal(true);
    expect(engines[0].generate(request(11, { maxTokens: 600 }))).to.include({ ok: false, code: 'GPU_TOO_LONG' });
  });

  it('lets a prefill wait for room in the pool and refuses one that never fits', () => {
    const { clock, engines, heard } = fleet({ poolBlocks: 3 }, ['p']);
    expect(engines[0].prefill(request(1, { prompt: prompt(200) }), 0, 1000)).to.include({ code: 'GPU_POOL_FULL' });
    engines[0].prefill(request(2), 0, 1e9);
    engines[0].prefill(request(3), 0, 1e9);
    const isPrefilled = (key: number) => heard[0].steps.some((step) => step.prefilled.some((done) => done.key === key));
    clock.run(() => isPrefilled(2) && engines[0].load().busySlots === 0);
    expect(isPrefilled(3)).to.equal(false);
    engines[0].release(2);
    clock.run(() => isPrefilled(3));
    expect(isPrefilled(3)).to.equal(true);
  });

  it('refuses what no engine could serve', () => {
    const { engines } = fleet({ sequenceTokens: 512 }, ['one']);
    const bad: [Partial<EngineRequest>, string][] = [
      [{ prompt: new Uint32Array(0) }, 'GPU_BAD_REQUEST'],
      [{ prompt: Uint32Array.of(50_000) }, 'GPU_BAD_REQUEST'],
      [{ choices: [] }, 'GPU_BAD_REQUEST'],
      [{ choices: [0, 0].map((index) => ({ index, generated: new Uint32Array(0) })) }, 'GPU_BAD_REQUEST'],
      [{ maxTokens: 0 }, 'GPU_BAD_REQUEST'],
      [{ key: 0 }, 'GPU_BAD_REQUEST'],
      [{ maxTokens: 512 - 149 }, 'GPU_TOO_LONG'],
    ];
    for (const [changes, code] of bad) expect(engines[0].generate(request(1, changes))).to.include({ ok: false, code });
    expect(engines[0].generate(request(1, { maxTokens: 512 - 150 })).ok).to.equal(true);
    expect(engines[0].generate(request(1))).to.include({ ok: false, code: 'GPU_BAD_REQUEST' });
  });

  it('is silent about a cancelled request from the next step on and has its slot back', () => {
    const { clock, engines, heard } = fleet({}, ['one']);
    engines[0].generate(request(1, { maxTokens: 1000 }));
    engines[0].generate(request(2));
    clock.run(() => heard[0].tokens(1).length === 3);
    engines[0].cancel(1);
    engines[0].cancel(77);
    clock.run();
    expect(heard[0].tokens(1)).to.have.length(3);
    expect(heard[0].tokens(2)).to.have.length(20);
    expect(engines[0].load()).to.include({ busySlots: 0, usedKvBlocks: 0 });
  });

  it('gives every step of a random life back what it took', () => {
    const command = fc.record({
      kind: fc.constantFrom('generate', 'prefill', 'reserve', 'cancel', 'release', 'turn'),
      key: fc.integer({ min: 1, max: 6 }),
      length: fc.integer({ min: 1, max: 200 }),
    });
    fc.assert(
      fc.property(fc.array(command, { maxLength: 60 }), (commands) => {
        const { clock, engines, heard } = fleet({ slots: 3, waiting: 2, kvBlocks: 12, poolBlocks: 5 }, ['one']);
        const [engine] = engines;
        for (const { kind, key, length } of commands) {
          const work = request(key, { prompt: prompt(length, key) });
          if (kind === 'generate') engine.generate(work);
          else if (kind === 'prefill') engine.prefill(work, length % 2, 50);
          else if (kind === 'reserve') engine.reserve(work);
          else if (kind === 'cancel') engine.cancel(key);
          else if (kind === 'release') engine.release(key);
          else
            clock.run(
              (
                (steps) => () =>
                  heard[0].steps.length > steps
              )(heard[0].steps.length),
            );
          const load = engine.load();
          expect(load.busySlots).to.be.within(0, 3);
          expect(load.usedKvBlocks).to.be.within(0, 12);
          expect(load.exportedBlocks).to.be.within(0, 5);
          expect(load.waiting).to.be.within(0, 5);
        }
        for (let key = 1; key <= 6; key += 1) engine.cancel(key);
        clock.run();
        expect(engine.load()).to.include({ busySlots: 0, usedKvBlocks: 0, exportedBlocks: 0, waiting: 0 });
      }),
      { numRuns: 200 },
    );
  });

  it("takes the time of Dynamo's formulas, divided by the speed-up", () => {
    expect(prefillMs(512)).to.be.closeTo(24.386, 0.001);
    expect(prefillMs(8192)).to.be.closeTo(169.137, 0.001);
    expect(decodeMs(0)).to.equal(5.74);
    expect(decodeMs(0.5)).to.be.closeTo(26.31, 0.001);
    const { clock, engines } = fleet({ speedup: 2 }, ['one']);
    engines[0].generate(request(1, { prompt: prompt(512), maxTokens: 1 }));
    clock.run();
    expect(clock.now()).to.be.closeTo((prefillMs(512) + decodeMs(0)) / 2, 0.001);
  });

  it('takes stepMs per iteration when told to, and does not make up for idle time', () => {
    const { clock, engines, heard } = fleet({ stepMs: 5 }, ['one']);
    engines[0].generate(request(1, { maxTokens: 4 }));
    clock.run();
    expect(clock.now()).to.equal(20);
    clock.setTimer(30, () => engines[0].generate(request(2, { maxTokens: 2 })));
    clock.run();
    expect(clock.now()).to.equal(60);
    expect(heard[0].steps).to.have.length(6);
  });

  it('carries log probabilities that are the same on every run, the chosen token first', () => {
    const { clock, engines, heard } = fleet({}, ['one']);
    engines[0].generate(request(1, { logprobs: 3 }));
    engines[0].generate(request(2, { logprobs: -1 }));
    engines[0].generate(request(3));
    clock.run();
    const tokens = heard[0].steps.flatMap((step) => step.tokens);
    for (const token of tokens) {
      const [own, top] = token.logprobs ?? [0, []];
      if (token.key === 3) expect(token.logprobs).to.equal(undefined);
      else expect(own).to.be.below(0);
      if (token.key !== 1) continue;
      expect(top).to.have.length(3);
      expect(top[0]).to.deep.equal([token.token, own]);
      expect(top[1]?.[1]).to.be.below(own);
    }
  });

  it('does nothing after it was stopped', async () => {
    const { clock, engines, heard } = fleet({}, ['one']);
    engines[0].generate(request(1));
    await engines[0].stop();
    await engines[0].stop();
    clock.run();
    expect(heard[0].steps).to.have.length(0);
    expect(engines[0].generate(request(2))).to.include({ ok: false, code: 'GPU_STOPPED' });
  });

  it('hands over through the native pool what it hands over in memory', async () => {
    const work = request(1, { prompt: prompt(1000), maxTokens: 50 });
    const p = createMockEngine({ owner: 'p', speedup: 0 });
    const d = createMockEngine({ owner: 'd', speedup: 0 });
    const fromP = listen(p);
    reserve(d, work);
    const said = await new Promise<number[]>((resolve, reject) => {
      const tokens: number[] = [];
      d.start({
        step(step) {
          if (step.failed[0] !== undefined) reject(new Error(step.failed[0].message));
          tokens.push(...step.tokens.map((token) => token.token));
          if (step.tokens.some((token) => token.finish !== 0)) resolve(tokens);
        },
        died: reject,
      });
      p.prefill(work, 0, 10_000);
      const poll = (): void => {
        if (fromP.steps.every((step) => step.prefilled.length === 0)) {
          setImmediate(poll);
          return;
        }
        const blocks = fromP.steps.flatMap((step) => step.exported).flatMap((entry) => entry.blocks);
        const [token] = fromP.tokens(1) as [number];
        d.commit(1, handoff(p, work, 0, blocks), [{ choice: 0, token, finished: false }]);
      };
      poll();
    });
    expect([...fromP.tokens(1), ...said]).to.deep.equal(alone(work)[0]);
    await Promise.all([p.stop(), d.stop()]);
  });
});

describe('mock vocabulary', () => {
  const vocabulary = openMockVocabulary();
  const text = (tokens: Iterable<number>): string =>
    Buffer.concat(Array.from(tokens, (token) => vocabulary.piece(token))).toString();

  it('turns any text into tokens whose pieces are that text', () => {
    const words = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.nat({ max: 60_000 }).map((id) => ` tok${id}`),
    );
    fc.assert(
      fc.property(
        fc.array(words).map((parts) => parts.join('')),
        (source) => {
          const tokens = vocabulary.tokenize(source, { special: false, addBos: true });
          expect(text(tokens)).to.equal(Buffer.from(source).toString());
          expect(tokens.every((token) => token < vocabulary.size)).to.equal(true);
        },
      ),
    );
  });

  it('finds words and, when asked, control tokens', () => {
    const source = '<|im_start|>hi tok600 tok50000<|im_end|>';
    const special = vocabulary.tokenize(source, { special: true, addBos: false });
    expect([...special]).to.deep.equal([257, 104, 105, 600, ...Buffer.from(' tok50000'), 258]);
    expect(vocabulary.tokenize(source, { special: false, addBos: false })[0]).to.equal(60);
    expect(vocabulary.endTokens.has(258)).to.equal(true);
    expect(vocabulary.piece(258)).to.have.length(0);
  });

  it('has characters cut in two, which the engine emits head first and tail next', () => {
    const [tokens] = alone(request(1, { maxTokens: 2000 })) as [number[]];
    const halves = tokens.filter((token) => token < 512);
    expect(halves.length).to.be.above(10);
    expect(halves.length % 2).to.equal(0);
    expect(text(halves)).to.match(/^[éßж中語€😀🚀]+$/u);
    expect(text(tokens)).to.not.contain('\uFFFD');
  });
});
