/** The models this gateway serves. They come and go at run time, as workers announce and withdraw them. */
import type { Vocabulary } from '../gpu/index.js';
import { type ChatTemplate, compileTemplate } from './chat-template.js';
import { PieceTable } from './detokenizer.js';

export interface ServedModel {
  readonly id: string;
  readonly vocabulary: Vocabulary;
  /** Most tokens of prompt and answer together, on the workers that serve it. */
  readonly contextTokens: number;
  /** Seconds since 1970. */
  readonly created: number;
  readonly template: ChatTemplate;
  readonly pieces: PieceTable;
}

export interface ModelRegistry {
  /** Serves a model, or changes one. `contextTokens` caps what the vocabulary says. */
  add(vocabulary: Vocabulary, options?: { contextTokens?: number; created?: number }): void;
  /** Takes a model out of the list; requests that run keep their vocabulary. */
  remove(id: string): void;
  get(id: string): ServedModel | undefined;
  list(): readonly ServedModel[];
  /** Like `get`, and also finds a model that was removed: its last requests are still being answered. */
  lookup(id: string): ServedModel | undefined;
}

/** `report` hears of chat templates that do not work. */
export function createModelRegistry(report: (error: unknown) => void = () => undefined): ModelRegistry {
  const served = new Map<string, ServedModel>();
  const known = new Map<string, ServedModel>();
  return {
    add(vocabulary, options = {}) {
      const contextTokens = Math.min(vocabulary.contextTokens, options.contextTokens ?? Number.POSITIVE_INFINITY);
      const before = known.get(vocabulary.model);
      const kept = before?.vocabulary === vocabulary ? before : undefined;
      const model: ServedModel = {
        id: vocabulary.model,
        vocabulary,
        contextTokens,
        created: options.created ?? before?.created ?? Math.floor(Date.now() / 1000),
        template: kept?.template ?? compileTemplate(vocabulary, report),
        pieces: kept?.pieces ?? new PieceTable(vocabulary),
      };
      served.set(model.id, model);
      known.set(model.id, model);
    },
    remove: (id) => void served.delete(id),
    get: (id) => served.get(id),
    list: () => [...served.values()],
    lookup: (id) => known.get(id),
  };
}
