/** What comes of a placement: its end, its first token, what it says of the workers, and everything it held given back. */
import { parts } from '../../transport/index.js';
import type { Ctx } from '../kernel/contract.js';
import { isFull, meaningOf } from '../refusals.js';
import { pairKey } from './inhibition.js';
import type { EntryKey } from './ledger.js';
import type { AttemptEnd, RouterMessage } from './messages.js';
import type { RouterConfig, RouterState } from './state.js';

/** Blocks that a cache lacks before it is worth a line. */
const driftBlocks = 4;

export const keysOf = (decode: string, prefill: string | undefined): readonly string[] =>
  prefill === undefined ? [decode] : [decode, prefill, pairKey(prefill, decode)];

/** What the end of an attempt says of the workers it was placed on. */
export function learn(state: RouterState, num: number, end: AttemptEnd | undefined, ctx: Ctx<RouterMessage>): void {
  const placed = state.placed.get(num);
  if (placed === undefined) return;
  const { decode, prefill: computedBy } = placed;
  const { inhibitions } = state;
  if (end !== undefined && end !== 'served') {
    const { worker, code } = end;
    const meaning = meaningOf(code);
    if (meaning.drop) state.workers.delete(worker);
    // Whoever is gone, alone or as half of a pair, needs no keeping out.
    const there = (incarnation: string) => state.workers.has(incarnation);
    if (meaning.inhibit === 'pair' && computedBy !== undefined) {
      if (there(decode) && there(computedBy)) inhibit(state, pairKey(computedBy, decode), code, placed.at, ctx);
    } else if (meaning.inhibit !== 'no' && there(worker)) inhibit(state, worker, code, placed.at, ctx);
  }
  for (const key of keysOf(decode, computedBy)) {
    if (end === 'served') inhibitions.served(key, num, ctx.now());
    else inhibitions.withdrawn(key, num);
  }
}

/** After its release, which would otherwise have it tried again at once, and again. */
export function markFull(state: RouterState, end: AttemptEnd | undefined): void {
  if (end === undefined || end === 'served' || !isFull(end.code)) return;
  const worker = state.workers.get(end.worker);
  if (worker) worker.full = true;
}

export function inhibit(
  state: RouterState,
  key: string,
  reason: string,
  placedAt: number,
  ctx: Ctx<RouterMessage>,
): void {
  const before = state.inhibitions.total;
  state.inhibitions.failed(key, reason, placedAt, ctx.now());
  if (state.inhibitions.total === before) return;
  ctx.log.warn('out of routing for a while', { worker: key, reason });
  // Who is silent is each router's to judge, for it may be this one that hears nothing.
  if (Number.isFinite(placedAt)) state.replicas.voice.failed(key, reason, placedAt);
}

/** Another router has put a worker or pair out: what failed there would fail here. Each tries for itself whether it works again. */
export function failedElsewhere(
  { workers, inhibitions }: RouterState,
  { from, body }: RouterMessage & { type: 'Replica' },
  ctx: Ctx<RouterMessage>,
): void {
  if (body.failed.length === 0 || parts(from).incarnation === parts(ctx.address).incarnation) return;
  const now = ctx.now();
  for (const { key, reason, placedMs } of body.failed) {
    if (key.split('>').every((each) => workers.has(each))) inhibitions.failed(key, reason, now - placedMs, now);
  }
}

/** The prompt is no load any more, and what the cache had of it shows how true the router's view of it is. */
export function began(
  state: RouterState,
  config: RouterConfig,
  { num, attempt, cachedTokens }: RouterMessage & { type: 'FirstToken' },
  ctx: Ctx<RouterMessage>,
): void {
  const placed = state.placed.get(num);
  if (placed?.attempt !== attempt || placed.record.cachedTokens !== undefined) return;
  const worker = placed.prefill ?? placed.decode;
  state.ledger.prefillDone({ origin: config.gateway, num, attempt, incarnation: worker });
  state.replicas.voice.began(num);
  if (cachedTokens === undefined) return;
  placed.record.cachedTokens = cachedTokens;
  config.tape?.began(placed.record);
  const { hits, drifted } = state;
  const { expectedTokens, id } = placed.record;
  const missed = Math.max(0, expectedTokens - cachedTokens);
  hits.prompt += placed.promptTokens;
  hits.expected += expectedTokens;
  hits.cached += cachedTokens;
  hits.missed += missed;
  hits.unforeseen += Math.max(0, cachedTokens - expectedTokens);
  if (missed < driftBlocks * config.blockTokens || drifted.has(worker)) return;
  drifted.add(worker);
  ctx.log.warn('a cache lacks what it was expected to have', { req: id, worker, expectedTokens, cachedTokens });
}

/** Output fills D's blocks. */
export function grown(
  { placed, ledger }: RouterState,
  origin: string,
  requests: readonly (readonly [number, number, number])[],
): void {
  for (const [num, attempt, tokens] of requests) {
    const decode = placed.get(num)?.decode;
    if (decode !== undefined) ledger.grown({ origin, num, attempt, incarnation: decode }, tokens);
  }
}

export function release(state: RouterState, origin: string, num: number): void {
  const placed = state.placed.get(num);
  if (!placed) return;
  freePrefill(state, origin, num);
  state.placed.delete(num);
  state.replicas.voice.over(num);
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.decode });
}

export function freePrefill(state: RouterState, origin: string, num: number): void {
  const placed = state.placed.get(num);
  if (placed?.prefill === undefined) return;
  state.replicas.voice.handed(num);
  free(state, { origin, num, attempt: placed.attempt, incarnation: placed.prefill });
}

/** Repeats are harmless: the ledger frees an entry once. */
function free(state: RouterState, key: EntryKey): void {
  const worker = state.workers.get(key.incarnation);
  if (state.ledger.free(key) && worker !== undefined) worker.full = false;
}
