/** Turns one engine step into one frame per gateway, and remembers what it sent (design 4.3). */
import type { EngineToken } from '../../gpu/index.js';
import type { Body, FrameItem } from '../../transport/index.js';
import type { Job, Jobs, TokenLogprobs } from './jobs.js';

type OpenItem = { -readonly [K in keyof FrameItem]: K extends 'tokens' ? number[] : FrameItem[K] };

/** Items by gateway incarnation. Adjacent tokens of one choice share an item: steps coalesce when JavaScript lags. */
export function framesOf(jobs: Jobs, tokens: readonly EngineToken[]): Map<string, FrameItem[]> {
  const frames = new Map<string, FrameItem[]>();
  let gateway = '';
  let items: FrameItem[] = [];
  let open: OpenItem | undefined;
  let openKey = -1;
  for (const token of tokens) {
    const job = jobs.byKey.get(token.key);
    if (job === undefined) continue;
    retain(job, token);
    if (
      open &&
      openKey === token.key &&
      open.choice === token.choice &&
      open.finish === 0 &&
      token.logprobs === undefined
    ) {
      if (token.token >= 0) open.tokens.push(token.token);
      open.finish = token.finish;
      continue;
    }
    if (job.gateway !== gateway) {
      gateway = job.gateway;
      items = frames.get(gateway) ?? [];
      frames.set(gateway, items);
    }
    open = {
      num: job.num,
      attempt: job.attempt,
      choice: token.choice,
      position: token.position,
      tokens: token.token >= 0 ? [token.token] : [],
      finish: token.finish,
    };
    openKey = token.key;
    if (token.logprobs !== undefined) open.logprobs = [token.logprobs];
    if (!job.cachedSent) {
      job.cachedSent = true;
      open.cached = job.cachedTokens;
    }
    items.push(open);
  }
  return frames;
}

function retain(job: Job, { choice, position, token, finish, logprobs }: EngineToken): void {
  let kept = job.retained.get(choice);
  if (kept === undefined) {
    kept = { from: position, tokens: [], logprobs: logprobs && [], finish: 0 };
    job.retained.set(choice, kept);
  }
  if (token >= 0) kept.tokens.push(token);
  if (logprobs !== undefined) kept.logprobs?.push(logprobs as TokenLogprobs[number]);
  kept.finish = finish;
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
