/** Messages in words, for the timeline of a request. */
import type { Body, Envelope } from '../../transport/index.js';

type Bodies = { readonly [K in Envelope['type']]?: (body: Body<K>) => string };
const told: Bodies = {
  Reserve: ({ work, prefill }) => `grant me KV, ${prefill} computes ${work.prompt.length} tokens${resumed(work)}`,
  Generate: ({ work }) => `compute ${work.prompt.length} tokens and decode${resumed(work)}`,
  Prefill: ({ work, haveBlocks }) =>
    `compute ${work.prompt.length} tokens${haveBlocks > 0 ? `, I have ${haveBlocks} blocks` : ''}`,
  PrefillDone: ({ handoff, cachedTokens }) =>
    `${handoff.blocks.length} blocks of KV are ready (${bytes(handoff.blocks)}), ${cachedTokens} tokens were cached`,
  KvOffer: ({ blocks }) => `${blocks.length} blocks of KV are ready (${bytes(blocks)})`,
  KvRelease: () => 'copied and verified, or wanted no more',
  Accepted: ({ leg, haveBlocks }) => `as ${leg}${haveBlocks > 0 ? `, has ${haveBlocks} blocks` : ''}`,
  Refused: ({ code, message }) => `${code} ${message}`,
  Failed: ({ code, message }) => `${code} ${message}`,
  Cancel: ({ reason }) => `while ${reason}`,
  Progress: ({ done, total }) => `${done} of ${total} prompt tokens`,
  Taken: ({ round }) => `the job, round ${round}`,
  TakenBy: ({ taker }) => `${taker} has the prompt`,
  TakerLost: ({ taker }) => `${taker} is lost`,
  Ended: () => 'forget it',
};
/** What a message says, in a line; no prompt and no token. */
export const detailOf = (message: Envelope): string =>
  (told[message.type] as ((body: unknown) => string) | undefined)?.(message.body) ?? '';

const bytes = (blocks: readonly { readonly bytes: number }[]) => {
  const kib = blocks.reduce((sum, block) => sum + block.bytes, 0) / 1024;
  return kib >= 1024 ? `${(kib / 1024).toFixed(1)} MiB` : `${Math.ceil(kib)} KiB`;
};

function resumed({ choices }: Body<'Generate'>['work']): string {
  const have = choices.reduce((sum, { generated }) => sum + generated.length, 0);
  return have === 0 ? '' : `, ${have} tokens were delivered before`;
}
