import { expect } from 'chai';
import { createMockEngine, type Engine, type EngineRequest, type EngineStep, hashFromHex } from '../../gpu/index.js';
import { openMemoryTransfer } from '../../gpu/mock/transfer.js';
import type { KvOp } from '../../transport/index.js';
import { greedy } from './llama-rig.js';

const sampling = { ...greedy, seed: 1 };
const blockTokens = 64;

function request(key: number, tokens: number, salt: number): EngineRequest {
  return {
    key,
    prompt: Uint32Array.from({ length: tokens }, (_, i) => 600 + ((i * 31 + salt * 7919) % 40_000)),
    choices: [{ index: 0, generated: new Uint32Array(0) }],
    sampling,
    maxTokens: 1,
    minTokens: 0,
    ignoreEos: false,
    logprobs: 0,
    cacheSalt: '',
  };
}

/** A clock that is always due at once; `run` until nothing is left to do. */
function eager() {
  const due: (() => void)[] = [];
  const later = (run: () => void) => {
    due.push(run);
    return () => void due.splice(due.indexOf(run), due.includes(run) ? 1 : 0);
  };
  return {
    clock: { now: () => 0, setTimer: (_ms: number, run: () => void) => later(run), yield: later },
    run() {
      for (let turns = 0; due.length > 0 && turns < 10_000; turns++) due.shift()?.();
    },
  };
}

/** What the engine says it holds: its reports, applied in order; a report that says nothing new is wrong. */
function follow(engine: Engine): Set<bigint> {
  const held = new Set<bigint>();
  const apply = (op: KvOp) => {
    if (op.op === 'cleared') throw new Error('a running cache is not cleared');
    for (const hash of op.hashes) {
      expect(held.has(hash), `${op.op} ${hash}`).to.equal(op.op === 'removed');
      if (op.op === 'stored') held.add(hash);
      else held.delete(hash);
    }
  };
  engine.start({
    step: ({ cache }: EngineStep) => cache?.forEach(apply),
    died: ({ message }) => {
      throw new Error(message);
    },
  });
  return held;
}

describe("the mock engine's reports of its prefix cache", () => {
  it('add up to exactly what the cache holds, with evictions, repeats and short last blocks', () => {
    const { clock, run } = eager();
    const engine = createMockEngine({ owner: 'w', clock, cacheBlocks: 5, speedup: 0 });
    const names = openMemoryTransfer({ owner: 'x', epoch: 1, slots: 1, slotBytes: 64 }, clock);
    const held = follow(engine);
    const whole = ({ prompt }: EngineRequest) =>
      names
        .hashes(prompt, blockTokens, '')
        .slice(0, Math.floor(prompt.length / blockTokens))
        .map(hashFromHex);
    const first = request(1, 3 * blockTokens + 10, 1);
    const second = request(2, 4 * blockTokens, 2);
    for (const each of [first, second, { ...first, key: 3 }]) {
      expect(engine.generate(each).ok).to.equal(true);
      run();
      expect(held.size).to.equal(engine.load().cachedBlocks);
      for (const hash of whole(each)) expect(held.has(hash)).to.equal(true);
    }
    expect(held.size).to.equal(5);
  });

  it('say nothing when nothing is cached', () => {
    const { clock, run } = eager();
    const engine = createMockEngine({ owner: 'w', clock, cacheBlocks: 0, speedup: 0 });
    const held = follow(engine);
    expect(engine.generate(request(1, 200, 1)).ok).to.equal(true);
    run();
    expect(held.size).to.equal(0);
    expect(engine.load()).to.include({ busySlots: 0, cachedBlocks: 0 });
  });
});
