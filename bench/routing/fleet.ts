/**
 * The parts of the routing benchmark that need no machine: a fleet of real actors and mock engines in virtual time (the one of the
 * specs), to which requests come by a clock. The same everywhere and always, however busy the machine is.
 */
import type { RouteRecord } from '../../actors/index.js';
import { createFleet, type Fleet, type FleetOptions, prepared } from '../../spec/actors/fleet.js';

export interface Arrival {
  /** Virtual milliseconds. */
  readonly at: number;
  /** Made when it is due: prompts of a whole trace are long. */
  readonly prompt: () => Uint32Array;
  readonly answerTokens: number;
}

export interface Served {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  /** Who computed the prompt. */
  readonly by: string;
}

export interface Run {
  readonly served: readonly Served[];
  /** Virtual milliseconds to the first token of each request. */
  readonly firstTokenMs: readonly number[];
  /** Share of the time that each worker that computes prompts had any, by incarnation. */
  readonly busy: ReadonlyMap<string, number>;
  /** From the first to the last request, in virtual milliseconds. */
  readonly elapsedMs: number;
}

const lastAnswersMs = 600_000;

/** Sends requests when they are due, at a `credit` of their own for cached blocks if there is one, and waits for all answers. Throws if one fails. */
export async function serve(options: FleetOptions, arrivals: readonly Arrival[], credit?: number): Promise<Run> {
  const served: Served[] = [];
  const began = ({ decisions, placed, cachedTokens = 0 }: RouteRecord) =>
    void served.push({
      promptTokens: decisions[0]?.promptTokens ?? 0,
      cachedTokens,
      by: placed?.prefill ?? placed?.decode ?? '',
    });
  const fleet = createFleet({ ...options, tape: { decided: () => {}, began } });
  const busyMs = new Map<string, number>();
  const start = fleet.world.now();
  let next = 0;
  for (; next < arrivals.length; await tick(fleet, busyMs)) {
    const now = fleet.world.now() - start;
    for (let due = arrivals[next]; due !== undefined && due.at <= now; due = arrivals[++next])
      submit(fleet, due, credit);
  }
  const elapsedMs = fleet.world.now() - start;
  await fleet.run(lastAnswersMs, () => fleet.summaries.length === arrivals.length);
  const failed = fleet.summaries.find(({ outcome }) => outcome !== 'complete');
  if (fleet.summaries.length < arrivals.length || failed !== undefined) {
    throw new Error(`a request was not answered: ${failed?.code ?? 'no end'}`);
  }
  return {
    served,
    firstTokenMs: fleet.summaries.map(({ ttftMs }) => ttftMs),
    busy: new Map([...busyMs].map(([worker, ms]) => [worker, ms / elapsedMs])),
    elapsedMs,
  };
}

function submit(fleet: Fleet, { prompt, answerTokens }: Arrival, credit: number | undefined): void {
  const wishes = credit === undefined ? {} : { wishes: { cost: { overlapScoreCredit: credit } } };
  fleet.submit({ ...prepared(), prompt: prompt(), maxTokens: answerTokens, ...wishes });
}

async function tick(fleet: Fleet, busyMs: Map<string, number>): Promise<void> {
  await fleet.run(1);
  for (const [incarnation, { engine, info }] of fleet.workers) {
    if (info.component !== 'prefill') continue;
    const { busySlots, waiting } = engine.load();
    busyMs.set(incarnation, (busyMs.get(incarnation) ?? 0) + (busySlots + waiting > 0 ? 1 : 0));
  }
}

/** Tokens of block `id`, which no other block has; the first `count` of them. */
export function blockOf(id: number, count: number): Uint32Array {
  return Uint32Array.from({ length: count }, (_, i) => (Math.imul(id * 65_537 + i + 1, 2_654_435_761) >>> 8) % 50_000);
}

export function joined(parts: readonly Uint32Array[]): Uint32Array {
  const whole = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Draws in [0, 1), the same in every run. */
export function draws(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}
