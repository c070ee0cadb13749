/**
 * Decisions of a router as they are written on the tape: compact, and with everything that `decide` was given, so that each can be made again
 * (promise P5). Costs and chances are not written, for they follow from that. No prompt, no token, no block hash.
 */
import Type, { type Static } from 'typebox';
import { Compile } from 'typebox/compile';
import { decodeCbor, encodeCbor } from '../../transport/index.js';
import { noOverlap } from './caches.js';
import type { CostConfig } from './cost.js';
import type { DisaggChoice } from './disagg.js';
import type { RouteRecord } from './route-log.js';
import { type Considered, type Decision, decide, type Exclusion, type SelectionMode } from './select.js';

/** What a router tells of its decisions as it makes them. Neither may throw. */
export interface RouteTape {
  decided(record: RouteRecord): void;
  /** The worker said what its cache had of the prompt: `record.cachedTokens`. */
  began(record: RouteRecord): void;
}

export interface RouteBatch {
  /** Whose router it is. */
  readonly gateway: string;
  /** Decisions since the batch before that are on no tape. */
  readonly dropped: number;
  readonly records: readonly RouteRecord[];
  /** Of these records and earlier ones. */
  readonly began: readonly RouteRecord[];
}

/** Largest batch in bytes: what is longer is nobody's. */
export const routeBatchBytes = 512 * 1024;

const Text = Type.String({ maxLength: 256 });
const Count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const Amount = Type.Number();
const Maybe = Type.Union([Amount, Type.Null()]);
const most = 65_536;

/** Index of the worker's name; rank; blocks on device, host, disk, external, shared; load: tokens, blocks, more blocks, requests; capacity. */
const Row = Type.Tuple([Count, Count, Amount, Amount, Amount, Maybe, Maybe, Maybe, Amount, Maybe, Amount, Amount]);

const DecisionRecord = Type.Object({
  mode: Text,
  phase: Type.Union([Type.Literal('prefill'), Type.Literal('decode')]),
  /** Tokens of the prompt and of a block. */
  prompt: Count,
  block: Count,
  prefer: Type.Optional(Type.Record(Text, Amount)),
  /** Index of the cost parameters. */
  cost: Count,
  turn: Count,
  draw: Amount,
  rows: Type.Array(Row, { maxItems: most }),
  /** Taints of the rows, if any has one. */
  taints: Type.Optional(Type.Array(Type.Array(Text, { maxItems: 256 }), { maxItems: most })),
  /** Index of the worker's name, rank, index of the reason. */
  out: Type.Array(Type.Tuple([Count, Count, Count]), { maxItems: most }),
  chosen: Type.Union([Count, Type.Null()]),
});

const RouteRow = Type.Object({
  id: Text,
  attempt: Count,
  /** Wall clock, for people. */
  at: Type.Number(),
  decisions: Type.Array(DecisionRecord, { maxItems: 1_024 }),
  disagg: Type.Optional(Type.Object({ remote: Type.Boolean(), uncachedTokens: Count, reason: Text })),
  /** Names of P and D; without P the prompt is computed on D. */
  placed: Type.Optional(Type.Object({ prefill: Type.Optional(Text), decode: Text })),
  expected: Count,
  session: Type.Optional(Text),
});

const Batch = Type.Object({
  v: Type.Literal(1),
  gateway: Text,
  dropped: Count,
  /** Incarnations and reasons, once each; everything else names them by index. */
  names: Type.Array(Text, { maxItems: most }),
  costs: Type.Array(Type.Record(Text, Type.Union([Amount, Type.Boolean()])), { maxItems: 1_024 }),
  records: Type.Array(RouteRow, { maxItems: most }),
  /** Request, attempt, tokens. */
  began: Type.Array(Type.Tuple([Text, Count, Count]), { maxItems: most }),
});

const check = Compile(Batch);

/** Each value once; its place. */
class Table<T> {
  readonly values: T[] = [];
  readonly #places = new Map<T, number>();

  place(value: T): number {
    let place = this.#places.get(value);
    if (place === undefined) {
      place = this.values.push(value) - 1;
      this.#places.set(value, place);
    }
    return place;
  }
}

const orNull = (value: number | undefined) => value ?? null;
const orNothing = (value: number | null) => value ?? undefined;

export function encodeRoutes({ gateway, dropped, records, began }: RouteBatch): Uint8Array {
  const names = new Table<string>();
  const costs = new Table<CostConfig>();
  const row = ({ incarnation, rank, overlap, load, capacity }: Considered): Static<typeof Row> => [
    names.place(incarnation),
    rank,
    overlap.device,
    overlap.host,
    overlap.disk,
    orNull(overlap.external),
    orNull(overlap.shared),
    orNull(load.prefillTokens),
    load.decodeBlocks,
    orNull(load.additionalBlocks),
    load.requests,
    capacity,
  ];
  const decision = (made: Decision): Static<typeof DecisionRecord> => ({
    mode: made.mode,
    phase: made.phase,
    prompt: made.promptTokens,
    block: made.blockTokens,
    ...(made.preferredTaints && { prefer: { ...made.preferredTaints } }),
    cost: costs.place(made.cost),
    ...made.chance,
    rows: made.candidates.map(row),
    ...(made.candidates.some(({ taints }) => taints.length > 0) && {
      taints: made.candidates.map(({ taints }) => [...taints]),
    }),
    out: made.excluded.map(({ incarnation, rank, reason }) => [names.place(incarnation), rank, names.place(reason)]),
    chosen: orNull(made.chosen),
  });
  const written = records.map(
    ({ id, attempt, at, decisions, disagg, placed, expectedTokens, session }): Static<typeof RouteRow> => ({
      id,
      attempt,
      at,
      decisions: decisions.map(decision),
      ...(disagg && { disagg }),
      ...(placed && { placed }),
      expected: expectedTokens,
      ...(session && { session }),
    }),
  );
  const batch: Static<typeof Batch> = {
    v: 1,
    gateway,
    dropped,
    names: names.values,
    costs: costs.values.map((cost) => ({ ...cost })),
    records: written,
    began: began.map(({ id, attempt, cachedTokens = 0 }) => [id, attempt, cachedTokens]),
  };
  return encodeCbor(batch);
}

/** Undefined: no batch, or of another version. Records of `only` alone, if given; `began` has no more than id, attempt and tokens. */
export function decodeRoutes(bytes: Uint8Array, only?: string): RouteBatch | undefined {
  const batch = parse(bytes);
  if (batch === undefined) return undefined;
  const { gateway, dropped, names, costs } = batch;
  const wanted = <T>(all: readonly T[], id: (each: T) => string) =>
    only === undefined ? all : all.filter((each) => id(each) === only);
  const decision = (read: Static<typeof DecisionRecord>): Decision => ({
    mode: read.mode as SelectionMode,
    phase: read.phase,
    promptTokens: read.prompt,
    blockTokens: read.block,
    preferredTaints: read.prefer,
    cost: costs[read.cost] as unknown as CostConfig,
    chance: { turn: read.turn, draw: read.draw },
    candidates: read.rows.map(([name, rank, device, host, disk, external, shared, ...rest], index) => {
      const [prefillTokens, decodeBlocks, additionalBlocks, requests, capacity] = rest;
      return {
        incarnation: names[name] ?? '',
        rank,
        overlap: {
          device,
          host,
          disk,
          ...(external !== null && { external }),
          ...(shared !== null && { shared }),
        },
        load: {
          prefillTokens: orNothing(prefillTokens),
          decodeBlocks,
          ...(additionalBlocks !== null && { additionalBlocks }),
          requests,
        },
        capacity,
        taints: read.taints?.[index] ?? [],
      };
    }),
    excluded: read.out.map(([name, rank, reason]) => ({
      incarnation: names[name] ?? '',
      rank,
      reason: (names[reason] ?? '') as Exclusion,
    })),
    chosen: orNothing(read.chosen),
  });
  return {
    gateway,
    dropped,
    records: wanted(batch.records, ({ id }) => id).map(
      ({ id, attempt, at, decisions, disagg, placed, expected, session }): RouteRecord => ({
        id,
        attempt,
        at,
        decisions: decisions.map(decision),
        ...(disagg && { disagg: disagg as DisaggChoice }),
        placed,
        expectedTokens: expected,
        ...(session && { session: session as NonNullable<RouteRecord['session']> }),
      }),
    ),
    began: wanted(batch.began, ([id]) => id).map(([id, attempt, cachedTokens]) => ({
      id,
      attempt,
      at: 0,
      decisions: [],
      placed: undefined,
      expectedTokens: 0,
      cachedTokens,
    })),
  };
}

function parse(bytes: Uint8Array): Static<typeof Batch> | undefined {
  if (bytes.length > routeBatchBytes) return undefined;
  try {
    const value = decodeCbor(bytes);
    return check.Check(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** The same decision made again from what is written of it: it comes out the same unless the code or the record has changed. */
export function decideAgain(decision: Decision): Decision {
  const { mode, cost, chance, candidates, excluded, phase, promptTokens, blockTokens, preferredTaints } = decision;
  // Pins and the like are not asked for again: whom they kept out is among the excluded. Only mode direct has no other ground.
  const only = candidates[0];
  if (mode === 'direct' && only === undefined) return decision;
  const pin = mode === 'direct' ? { worker: only?.incarnation } : undefined;
  const barred = excluded.map(({ incarnation, rank, reason }) => ({
    incarnation,
    rank,
    overlap: noOverlap,
    load: { prefillTokens: undefined, decodeBlocks: 0, requests: 0 },
    capacity: 1,
    taints: [],
    barred: reason,
  }));
  const wishes = { phase, promptTokens, blockTokens, preferredTaints, pin };
  return decide(mode, wishes, [...candidates, ...barred], cost, chance);
}
