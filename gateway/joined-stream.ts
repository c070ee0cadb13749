/**
 * Several requests answered as one: the prompts of a completions batch. Choice c of request i is choice i · n + c of the
 * answer. Nothing is shown before all are admitted, so that a refusal of any is still a real status.
 */
import type { ClientStream, Prepared, RequestError, Usage } from '../actors/index.js';

export function joinStreams(target: ClientStream, count: number): ClientStream[] {
  const held: (() => void)[] = [];
  let first: { id: string; prepared: Prepared } | undefined;
  let begun = 0;
  let ended = 0;
  let failed = false;
  let total: Usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0 };

  const whenAllBegun = (step: () => void) => {
    if (failed) return;
    if (begun < count) held.push(step);
    else step();
  };

  const member = (index: number): ClientStream => {
    let base = 0;
    return {
      begin(id, prepared) {
        if (failed) return;
        base = index * prepared.n;
        if (index === 0 || first === undefined) first = { id, prepared };
        if (++begun < count) return;
        target.begin(first.id, { ...first.prepared, n: first.prepared.n * count });
        for (const step of held.splice(0)) step();
      },
      text: (choice, text, tokens, logprobs) => whenAllBegun(() => target.text(base + choice, text, tokens, logprobs)),
      finish: (choice, reason, stop) => whenAllBegun(() => target.finish(base + choice, reason, stop)),
      end: (usage) =>
        whenAllBegun(() => {
          total = {
            promptTokens: total.promptTokens + usage.promptTokens,
            completionTokens: total.completionTokens + usage.completionTokens,
            cachedTokens: total.cachedTokens + usage.cachedTokens,
          };
          if (++ended === count) target.end(total);
        }),
      fail(error: RequestError) {
        if (failed) return;
        failed = true;
        held.length = 0;
        target.fail(error);
      },
    };
  };
  return Array.from({ length: count }, (_, index) => member(index));
}

/** Calls `ended` before a stream's last call, whichever that is. */
export function whenEnded(stream: ClientStream, ended: () => void): ClientStream {
  return {
    begin: (id, prepared) => stream.begin(id, prepared),
    text: (choice, text, tokens, logprobs) => stream.text(choice, text, tokens, logprobs),
    finish: (choice, reason, stop) => stream.finish(choice, reason, stop),
    end(usage, answer) {
      ended();
      stream.end(usage, answer);
    },
    fail(error) {
      ended();
      stream.fail(error);
    },
  };
}
