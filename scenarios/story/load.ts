/** Requests of a scenario: the same for the same seed. */
import type { Stream } from '../driver/streams.js';
import type { Load } from './story.js';

export type Phase = 'queued' | 'prefilling' | 'transferring' | 'decoding';

export function bodiesOf(load: Load, model: string, seed: number): object[] {
  const { streams = 16, tokens = 120, words = 60, samePrefix = false } = load;
  return Array.from({ length: streams }, (_, index) => {
    const place = (word: number) => (samePrefix && word < words - 4 ? 0 : index * 7919);
    const story = Array.from(
      { length: words },
      (_, word) => ` tok${1000 + ((seed * 104729 + place(word) + word * 31) % 9000)}`,
    );
    return {
      model,
      prompt: story.join(''),
      max_tokens: tokens,
      ignore_eos: true,
      stream: true,
      seed: seed * 1000 + index,
      temperature: index % 2 === 0 ? 0 : 0.8,
    };
  });
}

/** A client sees only text: what it has not got yet is queued, prefilling or transferring. */
export function inPhase(phase: Phase, streams: readonly Stream[]): boolean {
  const begun = streams.filter(({ at }) => at.length > 0).length;
  switch (phase) {
    case 'queued':
      return streams.some(({ at }) => at.length >= 10) && begun < streams.length;
    case 'prefilling':
      return begun > 0;
    case 'transferring':
      return begun >= streams.length / 4;
    case 'decoding':
      return streams.every(({ at, end }) => at.length >= 20 || end !== undefined);
  }
}
