/** What must hold when everything has come to rest: conservation (promise P4), and nothing believed of a cache that is not so. */
import type { DryRunOutcome, RouterMessage } from '../../actors/index.js';
import { sequenceHashes } from '../../gpu/index.js';
import { promptOf } from './client.js';
import { blockTokens, type Life, type Node } from './node.js';
import type { Schedule } from './schedule.js';

/** Lets time pass until it is so. */
type Wait = (until: () => boolean) => Promise<void>;

/** What is still held, by whom. Empty: everything is as before the first request. */
export async function leftovers(node: Node, wait: Wait): Promise<string[]> {
  const faults: string[] = [];
  for (const life of node.lives.values()) {
    const { name, state } = life.machine;
    if (state !== 'running') {
      faults.push(`${name} is ${state}`);
      continue;
    }
    const facts = await answered(node.facts(life), wait);
    if (facts === undefined) faults.push(`${name} does not answer`);
    for (const [what, count] of Object.entries(held(life, { ...facts }))) {
      if (count !== 0) faults.push(`${name} at rest: ${what} is ${count}`);
    }
  }
  return faults;
}

/** What routers believe that is not so. */
export async function untruths(node: Node, prompts: readonly Prompt[], wait: Wait): Promise<string[]> {
  const faults: string[] = [];
  for (const life of node.lives.values()) faults.push(...(await untrue(life, node, prompts, wait)));
  return faults;
}

/** What routers are asked about. */
export interface Prompt {
  readonly index: number;
  readonly tokens: number;
  readonly hashes: BigUint64Array;
}

/** Those that differ in their whole blocks: routers know nothing else of a prompt. */
export function promptsOf({ requests }: Schedule): readonly Prompt[] {
  const prompts = new Map<bigint, Prompt>();
  for (const [index, planned] of requests.entries()) {
    const prompt = promptOf(planned, index);
    const hashes = sequenceHashes(prompt, blockTokens, '');
    const last = hashes.at(-1);
    if (last !== undefined) prompts.set(last, { index, tokens: prompt.length, hashes });
  }
  return [...prompts.values()];
}

function held({ engine, gateway }: Life, facts: Record<string, unknown>): Record<string, unknown> {
  if (gateway !== undefined) {
    const { inFlight, leaked, conflicts, router } = facts;
    return { inFlight, leaked, conflicts, queued: (router as { queued?: number } | undefined)?.queued };
  }
  const { busySlots, waiting, usedKvBlocks, exportedBlocks } = engine?.engine.load() ?? {};
  const { jobs, leaked } = facts;
  return { jobs, leaked, busySlots, waiting, usedKvBlocks, exportedBlocks };
}

/** A dry run tells what a router believes; nobody may be booked with work, or credited with blocks it does not have. */
async function untrue(
  { gateway, machine }: Life,
  node: Node,
  prompts: readonly Prompt[],
  wait: Wait,
): Promise<string[]> {
  const faults: string[] = [];
  if (gateway === undefined || machine.state !== 'running') return faults;
  const engines = new Map([...node.lives.values()].map((each) => [each.machine.name, each.engine]));
  for (const { index, tokens, hashes } of prompts) {
    const request = { ...dryRun, promptTokens: tokens, hashes };
    const asked = machine.kernel.ask<RouterMessage, DryRunOutcome>(
      gateway.router,
      (replyTo) => ({ type: 'DryRun', request, replyTo }),
      askMs,
    );
    const outcome = await answered(asked, wait);
    for (const { candidates } of outcome?.decisions ?? []) {
      for (const { incarnation, overlap, load } of candidates) {
        const there = prefixLength(hashes, engines.get(incarnation)?.cached ?? new Set());
        const what = `blocks of request ${index} at ${incarnation}`;
        if (overlap.device > there)
          faults.push(`${machine.name} believes ${overlap.device} ${what}, which has ${there}`);
        if (load.requests !== 0)
          faults.push(`${machine.name} at rest: ${load.requests} requests booked at ${incarnation}`);
      }
    }
    if (faults.length > 0) break;
  }
  return faults;
}

const askMs = 1_000;
const dryRun = {
  num: 0,
  attempt: 1,
  id: '',
  model: 'mock',
  choices: 1,
  exclude: new Set<string>(),
  queueBy: Number.POSITIVE_INFINITY,
};

function prefixLength(hashes: BigUint64Array, cached: ReadonlySet<bigint>): number {
  let length = 0;
  while (length < hashes.length && cached.has(hashes[length] as bigint)) length++;
  return length;
}

async function answered<T>(work: Promise<T>, wait: Wait): Promise<T | undefined> {
  let answer: { readonly value: T | undefined } | undefined;
  work.then(
    (value) => {
      answer = { value };
    },
    () => {
      answer = { value: undefined };
    },
  );
  await wait(() => answer !== undefined);
  return answer?.value;
}
