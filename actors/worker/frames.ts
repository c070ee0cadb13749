/** Turns engine steps into frames, one per gateway, and remembers what it sent (design 4.3). */
import type { EngineToken } from '../../gpu/index.js';
import type { Body, FrameItem } from '../../transport/index.js';
import type { Job, Jobs, Retained, TokenLogprobs } from './jobs.js';

/** What gathers until the next frames leave. */
export interface Outgoing {
  /** By gateway incarnation. */
  readonly items: Map<string, FrameItem[]>;
  /** Counts the times that frames left: an item of an earlier round is out and takes no more tokens. */
  round: number;
}

export function newOutgoing(): Outgoing {
  return { items: new Map(), round: 1 };
}

/** Tokens of one choice share an item, also those of several steps. */
export function gather(jobs: Jobs, tokens: readonly EngineToken[], out: Outgoing): void {
  for (const token of tokens) {
    const job = jobs.byKey.get(token.key);
    if (job === undefined) continue;
    const kept = retain(job, token);
    const { item } = kept;
    if (item !== undefined && kept.round === out.round && item.finish === 0 && token.logprobs === undefined) {
      if (token.token >= 0) item.tokens.push(token.token);
      item.finish = token.finish;
    } else {
      open(job, kept, token, out);
    }
  }
}

function open(job: Job, kept: Retained, token: EngineToken, out: Outgoing): void {
  const item: NonNullable<Retained['item']> = {
    num: job.num,
    attempt: job.attempt,
    choice: token.choice,
    position: token.position,
    tokens: token.token >= 0 ? [token.token] : [],
    finish: token.finish,
  };
  if (token.logprobs !== undefined) item.logprobs = [token.logprobs];
  if (!job.cachedSent) {
    job.cachedSent = true;
    item.cached = job.cachedTokens;
  }
  // An item has log probabilities for all of its tokens or for none: it takes no more.
  kept.item = token.logprobs === undefined ? item : undefined;
  kept.round = out.round;
  const items = out.items.get(job.gateway);
  if (items === undefined) out.items.set(job.gateway, [item]);
  else items.push(item);
}

function retain(job: Job, { choice, position, token, finish, logprobs }: EngineToken): Retained {
  let kept = job.retained.get(choice);
  if (kept === undefined) {
    kept = { from: position, tokens: [], logprobs: logprobs && [], finish: 0, item: undefined, round: 0 };
    job.retained.set(choice, kept);
  }
  if (token >= 0) kept.tokens.push(token);
  if (logprobs !== undefined) kept.logprobs?.push(logprobs as TokenLogprobs[number]);
  kept.finish = finish;
  return kept;
}

/** The answer to a Resync: every asked choice from its position on, as far as this worker has it. */
export function repeatFrom(job: Job, positions: readonly (readonly [number, number])[]) {
  const items: Body<'Resynced'>['items'] = [];
  for (const [choice, position] of positions) {
    const kept = job.retained.get(choice);
    if (kept === undefined || position < kept.from) continue;
    const skip = position - kept.from;
    const tokens = Uint32Array.from(kept.tokens.slice(skip));
    if (tokens.length === 0 && kept.finish === 0) continue;
    const logprobs = kept.logprobs && { logprobs: kept.logprobs.slice(skip) };
    items.push({ choice, position, tokens, finish: kept.finish, ...logprobs });
  }
  return items;
}
