/** One request's life as data: phases, the transition table, and what the frontend keeps of each choice (design 5.2). */
import type { Sampling } from '../../transport/index.js';
import type { ClientStream, Detokenizer, Prepared, TokenLogprob } from './ports.js';
import type { StopScanner } from './stop-strings.js';

export type Phase =
  | 'accepted'
  | 'preparing'
  | 'queued'
  | 'prefilling'
  | 'transferring'
  | 'decoding'
  | 'migrating'
  | 'ended';

export type PhaseEvent =
  | 'prepare'
  /** Validated and admitted. */
  | 'admit'
  /** Prefill or Generate has been sent. */
  | 'dispatch'
  /** P's token 1. */
  | 'firstToken'
  /** A token from the worker that decodes. */
  | 'decodeToken'
  /** A leg refused, died, timed out or failed, and another worker may do better. */
  | 'lost'
  | 'requeue'
  | 'end';

/** The whole state machine. An empty cell is a bug and throws. */
export const transitions: Readonly<Record<Phase, Readonly<Partial<Record<PhaseEvent, Phase>>>>> = {
  accepted: { prepare: 'preparing', end: 'ended' },
  preparing: { admit: 'queued', end: 'ended' },
  queued: { dispatch: 'prefilling', lost: 'migrating', end: 'ended' },
  prefilling: { firstToken: 'transferring', decodeToken: 'decoding', lost: 'migrating', end: 'ended' },
  transferring: { firstToken: 'transferring', decodeToken: 'decoding', lost: 'migrating', end: 'ended' },
  decoding: { firstToken: 'decoding', decodeToken: 'decoding', lost: 'migrating', end: 'ended' },
  migrating: { requeue: 'queued', end: 'ended' },
  ended: {},
};

export function nextPhase(phase: Phase, event: PhaseEvent): Phase {
  const next = transitions[phase][event];
  if (next === undefined) throw new Error(`illegal transition: ${event} while ${phase}`);
  return next;
}

/** Tokens that came before their turn: token 1 comes from P, token 2 from D, and two publishers have no mutual order. */
export interface Early {
  readonly position: number;
  readonly tokens: readonly number[];
  readonly finish: number;
  readonly logprobs: readonly TokenLogprob[] | undefined;
}

export interface ChoiceState {
  readonly index: number;
  /** Everything delivered so far; its length is the next position. */
  readonly tokens: number[];
  readonly detokenizer: Detokenizer;
  readonly stop: StopScanner | undefined;
  early: Early[];
  /** Set once: the choice is over for the client. */
  finished: boolean;
}

/** Where the current attempt runs. */
export interface Placement {
  /** Undefined: aggregated, D does both. */
  readonly prefill: string | undefined;
  readonly decode: string;
  /** The prefill worker that D has left the prompt to (decode-first). D looks for another if it is lost. */
  readonly taker?: string;
}

export interface Request {
  readonly num: number;
  readonly ticket: number;
  readonly id: string;
  readonly stream: ClientStream;
  readonly trace: string | undefined;
  readonly acceptedAt: number;
  prepared: Prepared;
  sampling: Sampling;
  phase: Phase;
  attempt: number;
  placement: Placement | undefined;
  /** Incarnations that failed this request: not tried again. */
  readonly tried: Set<string>;
  /** Sequence hashes of the prompt's whole blocks, for the router. */
  readonly hashes: BigUint64Array;
  choices: ChoiceState[];
  /** `begin` was called: the client has its status line. */
  begun: boolean;
  prefillReleased: boolean;
  /** Deadlines on the frontend's clock; Infinity = none. Checked by the sweep, so tokens cost no timer. */
  acceptBy: number;
  phaseBy: number;
  totalBy: number;
  /** Until when it may wait for a worker; renewed by a migration, not by a full worker. */
  queueBy: number;
  /** Since when nobody has said anything about it: a worker that is silent for long is asked. */
  quietSince: number;
  /** Attempts that failed; that a worker was full is no failure. */
  failures: number;
  /** Why the last attempt was lost, a full worker apart; '' if none was. */
  lastLoss: string;
  /** Attempts that ended in a worker's death without a token of theirs. */
  deaths: number;
  /** Tokens that earlier attempts delivered. */
  servedBefore: number;
  /** The broker's outages when this attempt was placed. */
  outages: number;
  dispatchedAt: number;
  firstTokenAt: number;
  cachedTokens: number;
  /** It waits, and when it began to there was no worker for its model at all. */
  unserved: boolean;
  /** The command that placed it has been sent a second time. */
  repeated: boolean;
  /** A Resync is under way. */
  resyncing: boolean;
}

/** Whether it is for this worker to say anything of the request's attempt. */
export const isLeg = ({ placement }: Request, worker: string): boolean =>
  placement !== undefined && (worker === placement.decode || worker === prefillOf(placement));

/** Who computes the prompt, if not D, whoever chose it. */
export const prefillOf = ({ prefill, taker }: Placement): string | undefined => prefill ?? taker;
