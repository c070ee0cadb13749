/**
 * Every message that crosses a process, as a schema. The static types are derived from the schemas, so what the
 * compiler believes is what `envelope.ts` checks at the door. Design 4.1 names the five classes; the table `carriers`
 * at the end says which class each type belongs to.
 */
import Type, { type Static, type TUnsafe } from 'typebox';

/** Token ids, in order. CBOR carries it as RFC 8746 tag 70 (uint32, little endian). */
const Tokens = Type.Refine(
  Type.Any(),
  (value) => value instanceof Uint32Array,
  () => 'must be a Uint32Array',
) as unknown as TUnsafe<Uint32Array>;
/** A 64-bit number as 16 lower-case hex digits: JavaScript numbers lose its low bits. */
const Hex64 = Type.String({ pattern: '^[0-9a-f]{16}$' });
const Count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const Incarnation = Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' });

/** How a token is drawn. Every field is set: the gateway resolves the defaults, workers know none. */
export const Sampling = Type.Object({
  temperature: Type.Number({ minimum: 0, maximum: 2 }),
  topK: Type.Integer({ minimum: 0, description: '0 = off' }),
  topP: Type.Number({ exclusiveMinimum: 0, maximum: 1 }),
  minP: Type.Number({ minimum: 0, maximum: 1 }),
  frequencyPenalty: Type.Number({ minimum: -2, maximum: 2 }),
  presencePenalty: Type.Number({ minimum: -2, maximum: 2 }),
  repetitionPenalty: Type.Number({ exclusiveMinimum: 0, maximum: 2, description: '1 = off' }),
  /** Token id to additive bias. */
  logitBias: Type.Array(Type.Tuple([Count, Type.Number({ minimum: -100, maximum: 100 })]), { maxItems: 1024 }),
  /** The draw is a function of (seed, position, choice): design 6.3. 53 bits, so that JSON carries it. */
  seed: Count,
  /** What the text must follow, as GBNF; absent = any text. */
  grammar: Type.Optional(Type.String({ maxLength: 65_536 })),
});
export type Sampling = Static<typeof Sampling>;

/** One completion of a request. `generated` is what the client already has: non-empty only after a migration. */
const Choice = Type.Object({ index: Type.Integer({ minimum: 0, maximum: 127 }), generated: Tokens });
export type Choice = Static<typeof Choice>;

/** All that a worker must know to serve one request; the same bytes go to P and D, and again to the next attempt. */
export const Work = Type.Object({
  model: Type.String({ minLength: 1, maxLength: 256 }),
  prompt: Tokens,
  choices: Type.Array(Choice, { minItems: 1, maxItems: 128 }),
  sampling: Sampling,
  /** Most tokens a choice may hold in all, `generated` included; ≥ 1. */
  maxTokens: Type.Integer({ minimum: 1 }),
  minTokens: Count,
  ignoreEos: Type.Boolean(),
  /** 0 = none; else the number of alternatives, and every token carries its log probability. -1 = only the token's own. */
  logprobs: Type.Integer({ minimum: -1, maximum: 20 }),
  /** Folded into block hashes: requests with different salts never share KV. */
  cacheSalt: Type.String({ maxLength: 256 }),
});
export type Work = Static<typeof Work>;

/** Where answers go. `num` is never reused within a gateway incarnation, so nothing late can reach a stranger. */
const ReplyTo = Type.Object({ gateway: Incarnation, num: Count });
export type ReplyTo = Static<typeof ReplyTo>;

/** A shared-memory pool as its owner advertises it; a peer maps it read-only (design 6.5). */
export const PoolRef = Type.Object({
  backend: Type.Literal('shm'),
  owner: Incarnation,
  /** Counts the pools of one incarnation: a descriptor of an older pool is refused. */
  epoch: Count,
  pid: Count,
  fd: Count,
  bytes: Count,
});
export type PoolRef = Static<typeof PoolRef>;

/** One block of KV inside a pool: `tokens` positions from `index · blockTokens` on. Only the last may be short. */
export const BlockRef = Type.Object({
  index: Count,
  tokens: Type.Integer({ minimum: 1 }),
  offset: Count,
  bytes: Type.Integer({ minimum: 1 }),
  /** XXH3-64 over the block's bytes, seeded with its sequence hash, so that a foreign block of equal bytes fails too. */
  checksum: Hex64,
  /** Chained block hash of the tokens up to and including this block (Dynamo's identity, design 6.4). */
  hash: Hex64,
});
export type BlockRef = Static<typeof BlockRef>;

/** Hand-off descriptor: everything D must check before it serves from P's KV (promise P3). */
export const Handoff = Type.Object({
  pool: PoolRef,
  fingerprint: Type.String({ minLength: 1, maxLength: 128 }),
  kvType: Type.String({ maxLength: 32 }),
  layout: Type.String({ maxLength: 64 }),
  blockTokens: Type.Integer({ minimum: 1 }),
  promptTokens: Type.Integer({ minimum: 1 }),
  /** First block listed: D said at Reserve that it has the ones before. */
  firstBlock: Count,
  blocks: Type.Array(BlockRef, { maxItems: 65536 }),
  /** P frees the blocks after this long, asked or not. */
  leaseMs: Type.Integer({ minimum: 1 }),
});
export type Handoff = Static<typeof Handoff>;

export const Leg = Type.Union([Type.Literal('prefill'), Type.Literal('decode')]);
export type Leg = Static<typeof Leg>;

/** For each of some tokens: its log probability and its alternatives, as step frames carry them. */
const TokenLogprobs = Type.Array(
  Type.Tuple([Type.Number(), Type.Array(Type.Tuple([Count, Type.Number()]), { maxItems: 64 })]),
);

/** A request that a router has placed. Hashes are those of its first blocks, 8 bytes each, little endian. */
const ReplicaPlaced = Type.Object({
  num: Count,
  attempt: Count,
  /** Positions in the frame's `workers`; no `prefill`: D computes the prompt. */
  decode: Count,
  prefill: Type.Optional(Count),
  /** 0: its prompt is being computed; 1: its first token is there; 2: D has its KV. */
  stage: Type.Integer({ minimum: 0, maximum: 2 }),
  /** Slots on D. */
  units: Count,
  promptTokens: Count,
  /** Prompt tokens that no cache was expected to have. */
  toCompute: Count,
  hashes: Type.Refine(
    Type.Any(),
    (value) => value instanceof Uint8Array && value.length % 8 === 0 && value.length <= 2_048,
    () => 'must be bytes, 8 per block',
  ) as unknown as TUnsafe<Uint8Array>,
});

/** How many requests wait for a worker; which of them is next, and how much longer it may. */
const ReplicaWaiting = Type.Object({
  model: Type.String({ minLength: 1, maxLength: 256 }),
  /** Begun before: their clients see a stream stand. */
  again: Type.Boolean(),
  requests: Type.Integer({ minimum: 1 }),
  next: Count,
  leftMs: Count,
});

/** Leading blocks of a prompt that D has and lends to whoever computes the rest; valid as long as D's grant. */
export const LentPrefix = Type.Object({
  pool: PoolRef,
  fingerprint: Type.String({ minLength: 1, maxLength: 128 }),
  kvType: Type.String({ maxLength: 32 }),
  layout: Type.String({ maxLength: 64 }),
  blocks: Type.Array(BlockRef, { maxItems: 65536 }),
});
export type LentPrefix = Static<typeof LentPrefix>;

/** Message bodies by type. */
export const bodies = {
  // commands: JetStream MAIL
  /** gateway → D: hold slots and KV for a hand-off, then tell `prefill`. Answered Accepted or Refused. */
  Reserve: Type.Object({ work: Work, reply: ReplyTo, prefill: Incarnation }),
  /** D → P, once D holds its grant: compute the prompt, sample the first token of each fresh choice, offer KV to `decode`. */
  Prefill: Type.Object({
    work: Work,
    reply: ReplyTo,
    decode: Incarnation,
    haveBlocks: Count,
    prefix: Type.Optional(LentPrefix),
  }),
  /** gateway → D: prefill and decode here (no prefill worker, or not worth one). */
  Generate: Type.Object({ work: Work, reply: ReplyTo }),
  /** P → D: the prompt is computed; `first` has the token P sampled for each fresh choice. */
  PrefillDone: Type.Object({
    reply: ReplyTo,
    handoff: Handoff,
    first: Type.Array(
      Type.Object({ choice: Count, token: Count, finish: Count, logprobs: Type.Optional(TokenLogprobs) }),
      { maxItems: 128 },
    ),
    cachedTokens: Count,
  }),
  /** gateway → P and D: stop now. Leaves a tombstone, for it may overtake what it cancels. */
  Cancel: Type.Object({ reply: ReplyTo, reason: Type.String({ maxLength: 200 }) }),

  // jobs: JetStream work queue JOBS
  /**
   * D → whoever has a slot free first, once D holds its grant: tell `decode` by Taken, which then sends Prefill. Without the prompt, so that
   * it fits however long that is. `round` counts how often D has put the same on the queue.
   */
  RemotePrefill: Type.Object({ reply: ReplyTo, decode: Incarnation, round: Count }),

  // frames to a gateway: core publish on out.<gateway incarnation>
  Accepted: Type.Object({ num: Count, leg: Leg, worker: Incarnation, haveBlocks: Count }),
  Refused: Type.Object({
    num: Count,
    leg: Leg,
    worker: Incarnation,
    code: Type.String(),
    message: Type.String({ maxLength: 2000 }),
  }),
  /** The leg broke after it was accepted. */
  Failed: Type.Object({
    num: Count,
    leg: Leg,
    worker: Incarnation,
    code: Type.String(),
    message: Type.String({ maxLength: 2000 }),
  }),
  /** D → gateway: this prefill worker has taken the prompt from the queue; it speaks for the request from now on. */
  TakenBy: Type.Object({ num: Count, leg: Leg, worker: Incarnation, taker: Incarnation }),
  /** P is computing or D is importing: renews the first-token deadline. */
  Progress: Type.Object({ num: Count, leg: Leg, worker: Incarnation, done: Count, total: Count }),

  // frames to a worker: core publish on ack.<component>.<incarnation>
  /** P → D: this incarnation has taken the job. Answered by Prefill, or by KvRelease if D wants it no more. */
  Taken: Type.Object({ reply: ReplyTo, round: Count, taker: Incarnation }),
  /** gateway → D: nothing can be expected of the prefill worker that took the job. */
  TakerLost: Type.Object({ reply: ReplyTo, taker: Incarnation }),
  /** P → D: these blocks are ready to be pulled while later ones are computed. Lost offers are repaired by PrefillDone. */
  KvOffer: Type.Object({ reply: ReplyTo, pool: PoolRef, blocks: Type.Array(BlockRef, { maxItems: 4096 }) }),
  /** D → P: the copy is verified, or the request is wanted no more: free what is held for it. */
  KvRelease: Type.Object({ reply: ReplyTo }),
  /** gateway → worker: the request has ended; drop what is kept for Resync. */
  Ended: Type.Object({ reply: ReplyTo }),

  // telemetry: core publish on load.<component>.<incarnation>, every 250 ms
  Load: Type.Object({
    incarnation: Incarnation,
    slots: Count,
    busySlots: Count,
    waiting: Count,
    /** Of `busySlots` and `waiting`, those the engine has work for: a slot granted to a request that is computed elsewhere is idle. */
    queued: Count,
    kvBlocks: Count,
    usedKvBlocks: Count,
    cachedBlocks: Count,
    /** Grows with each step of the engine, and within a long one: stands still while work is queued = a wedged engine (design 8.1). */
    steps: Count,
    rssBytes: Count,
    /** Requests it holds. */
    jobs: Count,
    /** Requests, slots and exported blocks that nobody owns: not 0 is a defect. */
    leaked: Count,
    /** The next report comes within this time, in milliseconds: who has nothing to do says so less often. */
    everyMs: Count,
  }),
  /**
   * Router → the other routers, on replica.gateway.<incarnation>: what it has placed since its last frame. Requests are known by their
   * number; whoever misses a frame asks for a snapshot, which says all that stands, in parts that follow each other.
   */
  Replica: Type.Object({
    /** Counts this router's frames from 1. */
    seq: Count,
    /** Of a snapshot: which of how many parts. What came before it counts no more. */
    part: Type.Optional(Type.Tuple([Count, Type.Integer({ minimum: 1, maximum: 4_096 })])),
    /** Workers that `placed` names by their position here. */
    workers: Type.Array(Incarnation, { maxItems: 1_024 }),
    placed: Type.Array(ReplicaPlaced, { maxItems: 512 }),
    /** Their first token is there, their KV was handed to D, their attempt is over. */
    began: Type.Array(Count, { maxItems: 8_192 }),
    handed: Type.Array(Count, { maxItems: 8_192 }),
    over: Type.Array(Count, { maxItems: 8_192 }),
    /** Requests that are placed after this frame: others compare. Absent: more frames follow. */
    held: Type.Optional(Count),
    /** Who waits there, by model and kind. */
    waiting: Type.Array(ReplicaWaiting, { maxItems: 64 }),
    /** Workers (or pairs, as `P>D`) that it has put out of routing, for a failure of what it placed so many ms ago. */
    failed: Type.Array(
      Type.Object({
        key: Type.String({ minLength: 1, maxLength: 129 }),
        reason: Type.String({ maxLength: 64 }),
        placedMs: Count,
      }),
      { maxItems: 64 },
    ),
    /** Routers whose snapshot it needs. */
    want: Type.Array(Incarnation, { maxItems: 256 }),
  }),
  /** Node supervisor → everybody, on down.<component>.<incarnation>: this incarnation will never speak again. */
  Down: Type.Object({ incarnation: Incarnation, reason: Type.String({ maxLength: 500 }) }),

  // queries: core request on query.<component>.<incarnation>.<actor>
  /** gateway → worker: repeat the tokens of every choice from `positions[choice]` on. */
  Resync: Type.Object({
    reply: ReplyTo,
    attempt: Count,
    positions: Type.Array(Type.Tuple([Count, Count]), { maxItems: 128 }),
  }),
  Resynced: Type.Object({
    known: Type.Boolean(),
    items: Type.Array(
      Type.Object({
        choice: Count,
        position: Count,
        tokens: Tokens,
        finish: Count,
        logprobs: Type.Optional(TokenLogprobs),
      }),
      { maxItems: 128 },
    ),
  }),
} as const;

export type MessageType = keyof typeof bodies;
/** Each body's static type, worked out once: asking the schemas at every use costs the compiler minutes. */
interface Bodies extends BodyTypes {}
type BodyTypes = { [T in MessageType]: Static<(typeof bodies)[T]> };
export type Body<T extends MessageType> = Bodies[T];

export type Carrier = 'command' | 'job' | 'frame' | 'telemetry' | 'query';
/** Which of the classes of design 4.1 carries each type. */
export const carriers: Readonly<Record<MessageType, Carrier>> = {
  Reserve: 'command',
  Prefill: 'command',
  Generate: 'command',
  PrefillDone: 'command',
  Cancel: 'command',
  RemotePrefill: 'job',
  Accepted: 'frame',
  Refused: 'frame',
  Failed: 'frame',
  TakenBy: 'frame',
  Progress: 'frame',
  Taken: 'frame',
  TakerLost: 'frame',
  KvOffer: 'frame',
  KvRelease: 'frame',
  Ended: 'frame',
  Load: 'telemetry',
  Down: 'telemetry',
  Replica: 'telemetry',
  Resync: 'query',
  Resynced: 'query',
};

/** How a choice ended, as step frames carry it. 0 = it goes on. */
export const finishCodes = { none: 0, stop: 1, length: 2, cancelled: 3, error: 4 } as const;
export type FinishCode = (typeof finishCodes)[keyof typeof finishCodes];

/** An instance's entry in the REGISTRY bucket: JSON, for people read it. */
export const InstanceInfo = Type.Object({
  component: Type.Union([Type.Literal('gateway'), Type.Literal('prefill'), Type.Literal('decode')]),
  /** Stable over restarts, e.g. `decode-0`. */
  instance: Type.String(),
  incarnation: Incarnation,
  node: Type.String(),
  host: Type.String(),
  pid: Count,
  draining: Type.Boolean(),
  /** Absent for gateways. */
  model: Type.Optional(Type.String()),
  engine: Type.Optional(Type.String()),
  fingerprint: Type.Optional(Type.String()),
  slots: Type.Optional(Count),
  kvBlocks: Type.Optional(Count),
  blockTokens: Type.Optional(Count),
  contextTokens: Type.Optional(Count),
  /** Prompt tokens it computes in one batch at most. */
  batchTokens: Type.Optional(Count),
  /** What sets it apart, for requests that ask for it or rather avoid it. */
  taints: Type.Optional(Type.Array(Type.String({ minLength: 1, maxLength: 128 }), { maxItems: 32 })),
});
export type InstanceInfo = Static<typeof InstanceInfo>;
