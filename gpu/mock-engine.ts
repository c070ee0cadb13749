/**
 * An engine without weights, for specs and overhead benchmarks. It keeps the whole contract of engine.ts (slots, bounded
 * waiting line, chunked prefill, KV accounting, prefix cache, hand-off with every check) and takes the time that Dynamo's
 * mocker would take. What it says is a function of (prompt KV, seed, choice, position), so that texts can be compared
 * across runs, workers and faults. It ends a choice at `maxTokens` only: `minTokens`, `ignoreEos` and all of `sampling` but the
 * seed change nothing.
 */
import type { BlockRef, FinishCode, Handoff, LentPrefix, PoolRef } from '../transport/index.js';
import type {
  Engine,
  EngineError,
  EngineErrorCode,
  EngineLimits,
  EngineRequest,
  EngineSink,
  EngineToken,
  ModelCard,
  Verdict,
} from './engine.js';
import { kvBlocksOf, missingOf, type Refusal, refuse, wrongBlock, wrongHandoff, wrongRequest } from './mock/checks.js';
import { chain, choiceBase, digestKv, kvOf, logprobsAt, tokenAt } from './mock/content.js';
import { type FirstToken, generatedTokens, type Job, type Run } from './mock/job.js';
import { openNativeTransfer } from './mock/native-transfer.js';
import { type MockEngineOptions, type MockSettings, resolveOptions } from './mock/options.js';
import { PrefixCache } from './mock/prefix-cache.js';
import { decodeMs, type EngineClock, prefillMs } from './mock/timing.js';
import { openMemoryTransfer, type Transfer } from './mock/transfer.js';

const finishNone = 0 satisfies FinishCode;
const finishLength = 2 satisfies FinishCode;
/** An iteration that is late by more than this starts the schedule afresh instead of hurrying after it. */
const catchUpMs = 50;
/** What counts as progress within an iteration. */
const sliceMs = 100;

/** Options that cannot work are a RangeError here and nowhere later. */
export function createMockEngine(options: MockEngineOptions): Engine {
  return new MockEngine(options);
}

class MockEngine implements Engine {
  readonly card: ModelCard;
  readonly limits: EngineLimits;
  readonly pool: PoolRef;
  readonly #clock: EngineClock;
  readonly #transfer: Transfer;
  readonly #cache: PrefixCache;
  readonly #settings: MockSettings;

  readonly #jobs = new Map<number, Job>();
  #waiting: Job[] = [];
  #prefilling: Job[] = [];
  #ready: Job[] = [];
  #running: Run[] = [];
  #committed: number[] = [];
  #lent: { readonly key: number; readonly blocks: BlockRef[] }[] = [];
  #failed: ({ readonly key: number } & EngineError)[] = [];
  #freeSlots: number;
  #freeKv: number;
  #usedKv = 0;
  #promised = 0;
  #steps = 0;
  #sink: EngineSink | undefined;
  #stopped = false;
  /** Undoes what is scheduled: the iteration under way, or the yield before it. */
  #undo: (() => void) | undefined;
  #undoLease: (() => void) | undefined;
  /** When the iteration under way should end; -Infinity while idle, so that idle time is not made up for. */
  #due = Number.NEGATIVE_INFINITY;
  /** How long the iteration under way takes, 0 between two; and those before it. */
  #lasts = 0;
  #lastedMs = 0;

  constructor(options: MockEngineOptions) {
    const settings = resolveOptions(options);
    this.#settings = settings;
    this.limits = settings.limits;
    this.card = settings.card;
    this.#freeSlots = this.limits.slots;
    this.#freeKv = this.limits.kvBlocks;
    this.#cache = new PrefixCache(settings.cacheBlocks);
    this.#clock = settings.clock;
    const open = settings.transfer === 'memory' ? openMemoryTransfer : openNativeTransfer;
    this.#transfer = open(settings.pool, this.#clock);
    this.pool = this.#transfer.pool;
  }

  start(sink: EngineSink): void {
    this.#sink = sink;
    this.#schedule();
  }

  // ---- commands

  generate(request: EngineRequest): Verdict {
    const refusal = this.#check(request);
    if (refusal !== undefined) return refusal;
    if (
      this.#waiting.length >= this.#settings.waiting &&
      !this.#fits(request.choices.length, kvBlocksOf(request, this.card.blockTokens))
    ) {
      return refuse('GPU_FULL', `no slot is free and ${this.#waiting.length} requests wait`);
    }
    const job = this.#open(request, 'generate', 0, 0);
    job.slots = request.choices.length;
    job.kvBlocks = kvBlocksOf(request, this.card.blockTokens);
    return this.#enqueue(job);
  }

  prefill(request: EngineRequest, haveBlocks: number, leaseMs: number, prefix?: LentPrefix): Verdict {
    const refusal = this.#check(request);
    if (refusal !== undefined) return refusal;
    const blocks = Math.ceil(request.prompt.length / this.card.blockTokens);
    const exports = Math.max(0, blocks - haveBlocks);
    if (exports > this.#settings.pool.slots) {
      return refuse('GPU_POOL_FULL', `${exports} blocks to export, the pool has ${this.#settings.pool.slots}`);
    }
    if (this.#waiting.length >= this.#settings.waiting && !this.#fits(1, blocks, exports)) {
      return refuse('GPU_FULL', `no slot is free and ${this.#waiting.length} requests wait`);
    }
    const job = this.#open(request, 'prefill', haveBlocks, leaseMs);
    job.slots = 1;
    job.kvBlocks = blocks;
    job.promised = exports;
    if (prefix === undefined || !this.#borrow(job, prefix)) this.#enqueue(job);
    return { ok: true };
  }

  reserve(request: EngineRequest): Verdict<{ readonly haveBlocks: number }> {
    const refusal = this.#check(request);
    if (refusal !== undefined) return refusal;
    const kvBlocks = kvBlocksOf(request, this.card.blockTokens);
    if (!this.#fits(request.choices.length, kvBlocks)) {
      return refuse('GPU_FULL', `${this.#freeSlots} slots and ${this.#freeKv} KV blocks are free`);
    }
    const job = this.#open(request, 'decode', 0, 0);
    job.slots = request.choices.length;
    job.kvBlocks = kvBlocks;
    job.state = 'reserved';
    this.#hold(job);
    // Held, not looked up again later: an eviction between now and the commit must not open a hole.
    const cached = this.#cache.prefix(this.#wholeHashes(job));
    for (const [index, block] of cached.entries()) job.blocks[index] = block;
    job.haveBlocks = cached.length;
    job.cachedTokens = cached.length * this.card.blockTokens;
    return { ok: true, haveBlocks: job.haveBlocks };
  }

  lend(key: number): Verdict {
    const job = this.#jobs.get(key);
    if (job?.state !== 'reserved') return refuse('GPU_UNKNOWN_KEY', `request ${key} holds no grant`);
    if (job.exports.length > 0) return refuse('GPU_BAD_REQUEST', `request ${key} lends already`);
    for (const [index, block] of job.blocks.slice(0, job.haveBlocks).entries()) {
      if (block === undefined || this.#transfer.free() <= this.#promised) break;
      const ref = this.#transfer.put(index, block.tokens, block.hash, block.bytes);
      if (ref !== undefined) job.exports.push(ref);
    }
    this.#lent.push({ key, blocks: [...job.exports] });
    this.#schedule();
    return { ok: true };
  }

  pull(key: number, pool: PoolRef, blocks: readonly BlockRef[]): Verdict {
    const job = this.#jobs.get(key);
    if (job?.state !== 'reserved') return refuse('GPU_UNKNOWN_KEY', `request ${key} holds no grant`);
    const wrong = wrongBlock(job, blocks, this.#settings);
    if (wrong !== undefined) return refuse('GPU_HANDOFF_MISMATCH', wrong);
    if ((job.pulledFrom ?? pool.owner) !== pool.owner)
      return refuse('GPU_HANDOFF_MISMATCH', 'blocks come from two pools');
    job.pulledFrom = pool.owner;
    // A failed early pull is not the end: the commit asks again for what is missing, and that one counts.
    this.#fetch(job, pool, blocks, () => {});
    return { ok: true };
  }

  commit(key: number, handoff: Handoff, first: readonly FirstToken[]): Verdict {
    const job = this.#jobs.get(key);
    if (job?.state !== 'reserved' || job.commit !== undefined) {
      return refuse('GPU_UNKNOWN_KEY', `request ${key} holds no grant`);
    }
    for (const choice of job.request.choices) {
      const given = first.filter((entry) => entry.choice === choice.index).length;
      if (given !== (choice.generated.length === 0 ? 1 : 0)) {
        return refuse('GPU_BAD_REQUEST', `choice ${choice.index} has ${given} first tokens`);
      }
    }
    job.commit = { handoff, first };
    const mismatch = wrongHandoff(job, handoff, this.#settings);
    if (mismatch === undefined) this.#settle(job);
    else this.#fail(job, 'GPU_HANDOFF_MISMATCH', mismatch);
    return { ok: true };
  }

  cancel(key: number): void {
    const job = this.#jobs.get(key);
    if (job !== undefined) this.#end(job);
  }

  release(key: number): void {
    const job = this.#jobs.get(key);
    if (job?.state === 'exported') this.#end(job);
  }

  load(): ReturnType<Engine['load']> {
    return {
      busySlots: this.limits.slots - this.#freeSlots,
      waiting: this.#waiting.length,
      usedKvBlocks: this.#usedKv,
      cachedBlocks: this.#cache.size,
      steps: this.#steps,
      progress: this.#steps + Math.floor(this.#computedMs() / sliceMs),
      exportedBlocks: this.#transfer.used(),
    };
  }

  stop(): Promise<void> {
    if (!this.#stopped) {
      this.#stopped = true;
      this.#undo?.();
      this.#undoLease?.();
      this.#transfer.stop();
      this.#jobs.clear();
      this.#cache.clear();
      this.#waiting = [];
      this.#prefilling = [];
      this.#ready = [];
      this.#running = [];
    }
    return Promise.resolve();
  }

  // ---- admission

  #check(request: EngineRequest): Refusal | undefined {
    if (this.#stopped) return refuse('GPU_STOPPED', 'the engine is stopped');
    if (this.#jobs.has(request.key)) return refuse('GPU_BAD_REQUEST', `key ${request.key} is in use`);
    return wrongRequest(request, this.#settings);
  }

  #fits(slots: number, kvBlocks: number, exports = 0): boolean {
    return slots <= this.#freeSlots && kvBlocks <= this.#freeKv && exports <= this.#transfer.free() - this.#promised;
  }

  #open(request: EngineRequest, mode: Job['mode'], firstExport: number, leaseMs: number): Job {
    const job: Job = {
      request,
      mode,
      state: 'waiting',
      hashes: this.#transfer.hashes(request.prompt, this.card.blockTokens, request.cacheSalt),
      blocks: [],
      todo: 0,
      done: 0,
      cachedTokens: 0,
      slots: 0,
      kvBlocks: 0,
      usedBlocks: 0,
      live: request.choices.length,
      firstExport,
      leaseMs,
      exports: [],
      promised: 0,
      leaseEnds: 0,
      haveBlocks: 0,
      pulls: 0,
      pulledFrom: undefined,
      commit: undefined,
    };
    this.#jobs.set(request.key, job);
    return job;
  }

  #enqueue(job: Job): Verdict {
    this.#waiting.push(job);
    this.#schedule();
    return { ok: true };
  }

  #hold(job: Job): void {
    this.#freeSlots -= job.slots;
    this.#freeKv -= job.kvBlocks;
    this.#promised += job.promised;
  }

  /** First come, first served: a large request at the head is not overtaken, so it cannot starve. */
  #admit(): void {
    let taken = 0;
    for (const job of this.#waiting) {
      if (!this.#fits(job.slots, job.kvBlocks, job.promised)) break;
      taken += 1;
      this.#hold(job);
      job.state = 'prefilling';
      const whole = this.#wholeHashes(job);
      // The last token is computed in any case: its output is the first token's distribution.
      const usable =
        whole.length * this.card.blockTokens === job.request.prompt.length ? whole.length - 1 : whole.length;
      const cached = this.#cache.prefix(whole.slice(0, usable));
      for (const [index, block] of cached.entries()) job.blocks[index] = block;
      job.cachedTokens = cached.length * this.card.blockTokens;
      job.done = job.cachedTokens;
      job.todo = job.request.prompt.length + (job.mode === 'generate' ? generatedTokens(job.request) : 0);
      this.#use(job, cached.length);
      this.#prefilling.push(job);
    }
    if (taken > 0) this.#waiting = this.#waiting.slice(taken);
  }

  #wholeHashes(job: Job): readonly string[] {
    const whole = Math.floor(job.request.prompt.length / this.card.blockTokens);
    return whole === job.hashes.length ? job.hashes : job.hashes.slice(0, whole);
  }

  #use(job: Job, blocks: number): void {
    job.usedBlocks += blocks;
    this.#usedKv += blocks;
  }

  // ---- iterations

  #schedule(): void {
    if (this.#undo !== undefined || this.#stopped || this.#sink === undefined) return;
    this.#undo = this.#clock.yield(() => {
      this.#undo = undefined;
      this.#iterate();
    });
  }

  /** Plans an iteration from what is here now, lets its time pass, then says what came of it. */
  #iterate(): void {
    this.#admit();
    for (const job of this.#ready.splice(0)) this.#takeOver(job);
    const plan: [Job, number][] = [];
    let budget = this.#settings.batchTokens;
    for (const job of this.#prefilling) {
      const chunk = Math.min(job.todo - job.done, budget);
      plan.push([job, chunk]);
      budget -= chunk;
      if (chunk < job.todo - job.done || budget === 0) break;
    }
    const idle = plan.length === 0 && this.#running.length === 0;
    if (idle && this.#committed.length + this.#failed.length + this.#lent.length === 0) {
      this.#due = Number.NEGATIVE_INFINITY;
      return;
    }
    const ms = idle ? 0 : this.#iterationMs(plan);
    if (ms === 0) {
      this.#finish(plan);
      return;
    }
    const now = this.#clock.now();
    const base = this.#due > now || now - this.#due > catchUpMs ? now : this.#due;
    this.#due = base + ms;
    this.#lasts = ms;
    this.#undo = this.#clock.setTimer(Math.max(0, this.#due - now), () => {
      this.#undo = undefined;
      this.#finish(plan);
    });
  }

  #iterationMs(plan: readonly (readonly [Job, number])[]): number {
    if (this.#settings.speedup === 0) return 0;
    if (this.#settings.stepMs !== undefined) return this.#settings.stepMs / this.#settings.speedup;
    let ms = decodeMs(Math.min(1, this.#usedKv / this.limits.kvBlocks));
    for (const [, tokens] of plan) ms += prefillMs(tokens);
    return ms / this.#settings.speedup;
  }

  /** Of all iterations; of the one under way, what is over. */
  #computedMs(): number {
    const left = Math.max(0, this.#due - this.#clock.now());
    return this.#lastedMs + Math.max(0, this.#lasts - left);
  }

  #finish(plan: readonly (readonly [Job, number])[]): void {
    this.#steps += 1;
    this.#lastedMs += this.#lasts;
    this.#lasts = 0;
    const tokens: EngineToken[] = [];
    const progress: [number, number, number, number][] = [];
    const exported: { readonly key: number; readonly blocks: BlockRef[] }[] = this.#lent;
    this.#lent = [];
    const prefilled: { key: number; cachedTokens: number }[] = [];
    let kept = 0;
    const running = this.#running;
    for (const run of running) {
      if (run.job.state !== 'running') continue;
      if (this.#emit(run, tokens)) running[kept++] = run;
    }
    running.length = kept;
    for (const [job, chunk] of plan) {
      if (job.state !== 'prefilling') continue;
      const { key, prompt } = job.request;
      job.done += chunk;
      if (job.mode !== 'decode') {
        const blocks = this.#compute(job);
        if (blocks === undefined) continue;
        if (blocks.length > 0) exported.push({ key, blocks });
        progress.push([key, Math.min(job.done, prompt.length), prompt.length, job.cachedTokens]);
      }
      if (job.done < job.todo) continue;
      if (job.mode === 'prefill') {
        prefilled.push({ key, cachedTokens: job.cachedTokens });
        this.#sampleFirst(job, tokens);
        this.#export(job);
      } else {
        this.#run(job, tokens);
      }
    }
    this.#prefilling = this.#prefilling.filter((job) => job.state === 'prefilling');
    const committed = this.#committed;
    const failed = this.#failed;
    this.#committed = [];
    this.#failed = [];
    // The next iteration is on its way before anybody is told, so that a sink that throws does not wedge the engine.
    this.#schedule();
    const cache = this.#cache.changes();
    this.#sink?.step({
      steps: this.#steps,
      tokens,
      progress,
      exported,
      prefilled,
      committed,
      failed,
      ...(cache !== undefined && { cache }),
    });
  }

  /** One token of `run`. False: the choice has ended. */
  #emit(run: Run, tokens: EngineToken[]): boolean {
    const { job, position, base } = run;
    const { key, maxTokens, logprobs } = job.request;
    if (position >= maxTokens) {
      tokens.push({ key, choice: run.choice, position, token: -1, finish: finishLength });
      this.#endChoice(job);
      return false;
    }
    const token = tokenAt(base, position);
    const finish = position + 1 === maxTokens ? finishLength : finishNone;
    tokens.push(
      logprobs === 0
        ? { key, choice: run.choice, position, token, finish }
        : {
            key,
            choice: run.choice,
            position,
            token,
            finish,
            logprobs: logprobsAt(base, position, token, Math.max(0, logprobs)),
          },
    );
    if (position % this.card.blockTokens === 0) this.#use(job, 1);
    run.position = position + 1;
    if (finish === finishNone) return true;
    this.#endChoice(job);
    return false;
  }

  #endChoice(job: Job): void {
    job.live -= 1;
    if (job.mode === 'prefill') return;
    job.slots -= 1;
    this.#freeSlots += 1;
    if (job.live === 0) this.#end(job);
  }

  /** Makes the prompt blocks that are complete by now and exports them. Undefined: the job failed. */
  #compute(job: Job): BlockRef[] | undefined {
    const { prompt } = job.request;
    const { blockTokens } = this.card;
    const refs: BlockRef[] = [];
    const done = Math.min(job.done, prompt.length);
    const complete = done === prompt.length ? job.hashes.length : Math.floor(done / blockTokens);
    const before = Math.max(job.firstExport, job.firstExport + job.exports.length);
    for (let index = job.cachedTokens / blockTokens; index < complete; index += 1) {
      if (job.blocks[index] !== undefined) continue;
      const from = index * blockTokens;
      const part = prompt.subarray(from, from + blockTokens);
      const bytes = kvOf(part, from, this.#settings.words);
      const block = { hash: job.hashes[index] ?? '', tokens: part.length, bytes, digest: digestKv(bytes) };
      job.blocks[index] = block;
      this.#use(job, 1);
      if (part.length === blockTokens) this.#cache.put(block);
    }
    if (job.mode !== 'prefill') return refs;
    for (let index = before; index < complete; index += 1) {
      const block = job.blocks[index];
      if (block === undefined) break;
      const ref = this.#transfer.put(index, block.tokens, block.hash, block.bytes);
      if (ref === undefined) {
        this.#fail(job, 'GPU_POOL_FULL', `no room to export block ${index}`);
        return undefined;
      }
      job.promised -= 1;
      this.#promised -= 1;
      job.exports.push(ref);
      refs.push(ref);
    }
    return refs;
  }

  #base(job: Job, choice: number): ReturnType<typeof choiceBase> {
    const digests = job.blocks.map((block) => block?.digest ?? { a: 0, b: 0 });
    return choiceBase(chain(digests), job.request.sampling.seed, choice);
  }

  /** The prompt is there: every choice decodes from here on. */
  #run(job: Job, tokens: EngineToken[] | undefined): void {
    job.state = 'running';
    const first = job.commit?.first;
    for (const choice of job.request.choices) {
      const given = first?.find((entry) => entry.choice === choice.index);
      if (given?.finished === true) {
        this.#endChoice(job);
        continue;
      }
      const position = given === undefined ? choice.generated.length : 1;
      const run: Run = { job, choice: choice.index, base: this.#base(job, choice.index), position };
      this.#use(job, Math.ceil(position / this.card.blockTokens));
      if (tokens === undefined || this.#emit(run, tokens)) this.#running.push(run);
    }
  }

  #sampleFirst(job: Job, tokens: EngineToken[]): void {
    for (const choice of job.request.choices) {
      if (choice.generated.length > 0) continue;
      this.#emit({ job, choice: choice.index, base: this.#base(job, choice.index), position: 0 }, tokens);
    }
  }

  // ---- hand-off

  /** Frees slot and KV; what was exported stays until it is released or its lease ends. */
  #export(job: Job): void {
    this.#free(job);
    job.state = 'exported';
    if (job.exports.length === 0) {
      this.#end(job);
      return;
    }
    job.leaseEnds = this.#clock.now() + job.leaseMs;
    this.#watchLeases();
  }

  #watchLeases(): void {
    if (this.#undoLease !== undefined || this.#stopped) return;
    let earliest = Number.POSITIVE_INFINITY;
    for (const job of this.#jobs.values()) {
      if (job.state === 'exported') earliest = Math.min(earliest, job.leaseEnds);
    }
    if (earliest === Number.POSITIVE_INFINITY) return;
    this.#undoLease = this.#clock.setTimer(Math.max(1, earliest - this.#clock.now()), () => {
      this.#undoLease = undefined;
      const now = this.#clock.now();
      for (const job of this.#jobs.values()) if (job.state === 'exported' && job.leaseEnds <= now) this.#end(job);
      this.#watchLeases();
    });
  }

  /** A peer's blocks enter the cache before the prompt is begun; what fails to is computed. False: they are of no use. */
  #borrow(job: Job, prefix: LentPrefix): boolean {
    const here = this.#cache.prefix(this.#wholeHashes(job)).length;
    const missing = missingOf(job, prefix, here, this.#settings);
    if (missing === undefined) return false;
    this.#transfer.fetch(prefix.pool, missing, (result) => {
      if (job.state !== 'waiting') return;
      for (const [at, { hash, tokens }] of missing.entries()) {
        const bytes = result.ok ? result.blocks[at] : undefined;
        if (bytes !== undefined) this.#cache.put({ hash, tokens, bytes, digest: digestKv(bytes) });
      }
      this.#enqueue(job);
    });
    return true;
  }

  #fetch(job: Job, pool: PoolRef, blocks: readonly BlockRef[], lost: (error: EngineError) => void): void {
    job.pulls += 1;
    this.#transfer.fetch(pool, blocks, (result) => {
      job.pulls -= 1;
      if (job.state !== 'reserved') return;
      if (result.ok) {
        for (const [at, block] of blocks.entries()) {
          const bytes = result.blocks[at];
          if (bytes === undefined) continue;
          job.blocks[block.index] ??= { hash: block.hash, tokens: block.tokens, bytes, digest: digestKv(bytes) };
        }
      } else {
        lost(result);
      }
      this.#settle(job);
    });
  }

  /** After a commit, once no pull is under way: asks for what is missing, or lets the request run. */
  #settle(job: Job): void {
    if (job.commit === undefined || job.pulls > 0 || job.state !== 'reserved') return;
    const { handoff } = job.commit;
    const missing = handoff.blocks.filter((block) => job.blocks[block.index] === undefined);
    if (missing.length > 0) {
      this.#fetch(job, handoff.pool, missing, (error) => this.#fail(job, error.code, error.message));
      return;
    }
    job.state = 'ready';
    this.#ready.push(job);
    this.#schedule();
  }

  #takeOver(job: Job): void {
    if (job.state !== 'ready') return;
    this.#committed.push(job.request.key);
    for (const block of job.exports) this.#transfer.give(block);
    job.exports = [];
    for (const block of job.blocks) {
      if (block?.tokens === this.card.blockTokens) this.#cache.put(block);
    }
    this.#use(job, job.hashes.length);
    job.todo = generatedTokens(job.request);
    if (job.todo === 0) {
      this.#run(job, undefined);
    } else {
      job.state = 'prefilling';
      this.#prefilling.push(job);
    }
  }

  // ---- ends

  #fail(job: Job, code: EngineErrorCode, message: string): void {
    this.#failed.push({ key: job.request.key, code, message });
    this.#end(job);
  }

  /** Gives slot, KV and promised exports back. */
  #free(job: Job): void {
    if (job.state !== 'waiting') {
      this.#freeSlots += job.slots;
      this.#freeKv += job.kvBlocks;
      this.#promised -= job.promised;
    }
    this.#usedKv -= job.usedBlocks;
    job.slots = 0;
    job.kvBlocks = 0;
    job.promised = 0;
    job.usedBlocks = 0;
  }

  #end(job: Job): void {
    if (job.state === 'ended') return;
    this.#free(job);
    if (job.state === 'waiting') this.#waiting = this.#waiting.filter((other) => other !== job);
    job.state = 'ended';
    this.#jobs.delete(job.request.key);
    for (const block of job.exports) this.#transfer.give(block);
    job.exports = [];
    this.#schedule();
  }
}
