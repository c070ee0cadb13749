/** What the frontend is made with, what it can be told, and what it keeps. */
import type { Envelope, StepFrame } from '../../transport/index.js';
import type { Ctx, Ref } from '../kernel/contract.js';
import type { DryRunOutcome, RouterMessage, RouterReply, WorkerLoss } from '../router/messages.js';
import { PoisonList } from './poison.js';
import type {
  ClientStream,
  DetokenizerFactory,
  FrontendRequest,
  Prepared,
  Preprocessor,
  RequestSummary,
} from './ports.js';
import { nextPhase, type PhaseEvent, type Request } from './request.js';
import { RetryBudget, type RetryBudgetConfig } from './retries.js';

export interface FrontendConfig {
  readonly gateway: string;
  /** A worker must answer Accepted or Refused within this. */
  readonly acceptMs: number;
  readonly queueMs: number;
  /** From dispatch to the first token; Progress renews it. */
  readonly firstTokenMs: number;
  readonly betweenTokensMs: number;
  readonly totalMs: number;
  /** Attempts a request may use in all. */
  readonly attempts: number;
  readonly maxRequests: number;
  /** Tokens of the blocks by which prompts are compared with what workers have cached; 0: the router does not ask. */
  readonly hashBlockTokens: number;
  /** Attempts of all requests together, beyond their first. */
  readonly retries: RetryBudgetConfig;
  /** While the broker is away deadlines pause for at most this long. */
  readonly brokerOutageMs: number;
}

export interface FrontendPorts {
  readonly preprocessor: Preprocessor;
  readonly detokenizers: DetokenizerFactory;
  readonly summary: (summary: RequestSummary) => void;
  /** A prompt that brought workers down, by the hash of its tokens: for the dead letters. */
  readonly poison?: (id: string, model: string, prompt: bigint, detail: string) => void;
  /** Handling something of a request threw, and the request was ended: for the dead letters. */
  readonly broken?: (id: string, attempt: number, error: Error) => void;
  /** A request was accepted: from now on it ends exactly once, and `summary` says how. */
  readonly accepted?: (id: string, prepared: Prepared, label: string) => void;
}

export type WorkerNews = Envelope<'Accepted' | 'Refused' | 'Failed' | 'Progress' | 'TakenBy'>;

export type FrontendMessage =
  | FrontendRequest
  | RouterReply
  | WorkerNews
  | { readonly type: 'Frame'; readonly frame: StepFrame }
  | WorkerLoss
  /** Whoever is routed to has been announced by this first: an order to anybody else would be answered by nobody. */
  | { readonly type: 'WorkerUp'; readonly incarnation: string; readonly component: 'prefill' | 'decode' }
  /** Who has sent frames since the last time it was asked? */
  | { readonly type: 'HeardFrom'; readonly replyTo: Ref<{ readonly workers: readonly string[] }> }
  | { readonly type: 'Broker'; readonly up: boolean }
  /** Its turn in the retry budget has come. */
  | { readonly type: 'Again'; readonly num: number; readonly attempt: number }
  | { readonly type: 'Sweep' }
  /** Where a request would go, which is all that its client wants to know. */
  | {
      readonly type: 'DryRunDone';
      readonly stream: ClientStream;
      readonly prepared: Prepared;
      readonly id: string;
      readonly outcome: DryRunOutcome | undefined;
    }
  | {
      readonly type: 'Undelivered';
      readonly num: number;
      readonly attempt: number;
      readonly worker: string;
      readonly code: string;
    }
  | {
      readonly type: 'Resynced';
      readonly num: number;
      readonly attempt: number;
      readonly worker: string;
      readonly reply: Envelope<'Resynced'>['body'];
    }
  | { readonly type: 'ResyncFailed'; readonly num: number; readonly attempt: number; readonly worker: string }
  | { readonly type: 'Facts'; readonly replyTo: Ref<FrontendFacts> };

export type FrontendCtx = Ctx<FrontendMessage>;

export interface FrontendState {
  readonly config: FrontendConfig;
  readonly ports: FrontendPorts;
  readonly router: Ref<RouterMessage>;
  readonly requests: Map<number, Request>;
  readonly byTicket: Map<number, number>;
  /** Workers that exist, by incarnation. */
  readonly workers: Map<string, 'prefill' | 'decode'>;
  /** When a worker last sent something of a request that is over. */
  readonly strays: Map<string, number>;
  /** Last step frame of each worker: a hole means tokens were lost on the way. */
  readonly frames: Map<string, number>;
  /** Workers that sent frames since the registry last asked. */
  readonly heard: Set<string>;
  nextNum: number;
  accepted: number;
  ended: number;
  stale: number;
  conflicts: number;
  migrations: number;
  readonly retries: RetryBudget;
  readonly poison: PoisonList;
  /** A Sweep is on its way. */
  sweeping: boolean;
  /** When deadlines were looked at last. */
  sweptAt: number;
  /** When the router was told last how long the answers are. */
  growthToldAt: number;
  brokerDownAt: number | undefined;
  /** How often the broker has been away. */
  outages: number;
  /** Time that deadlines did not run: see `clock`. */
  paused: number;
}

export function newState(config: FrontendConfig, ports: FrontendPorts, router: Ref<RouterMessage>): FrontendState {
  return {
    config,
    ports,
    router,
    sweeping: false,
    sweptAt: 0,
    growthToldAt: 0,
    heard: new Set(),
    requests: new Map(),
    byTicket: new Map(),
    workers: new Map(),
    strays: new Map(),
    frames: new Map(),
    nextNum: 1,
    accepted: 0,
    ended: 0,
    stale: 0,
    conflicts: 0,
    migrations: 0,
    retries: new RetryBudget(config.retries),
    poison: new PoisonList(),
    brokerDownAt: undefined,
    outages: 0,
    paused: 0,
  };
}

/** The frontend's clock: stands still while the broker is away, so that an outage fails nobody. */
export const clock = (state: FrontendState, ctx: FrontendCtx) => (state.brokerDownAt ?? ctx.now()) - state.paused;

export const move = (r: Request, event: PhaseEvent) => {
  r.phase = nextPhase(r.phase, event);
};

/** The request a message of this attempt belongs to; anything older is counted and dropped. */
export function current(state: FrontendState, num: number, attempt: number): Request | undefined {
  const r = state.requests.get(num);
  if (r?.attempt === attempt) return r;
  state.stale++;
  return undefined;
}

export interface FrontendFacts {
  readonly inFlight: number;
  readonly accepted: number;
  readonly ended: number;
  /** Accepted requests that are neither ended nor in flight: 0, or a defect. */
  readonly leaked: number;
  readonly byPhase: Readonly<Record<string, number>>;
  readonly stale: number;
  readonly conflicts: number;
  readonly migrations: number;
  /** Prompts that are kept out because workers died of them. */
  readonly poisoned: number;
  /** Workers whose frames are counted: those that live and have sent some. */
  readonly peers: number;
}

export function factsOf(state: FrontendState, now: number): FrontendFacts {
  const byPhase: Record<string, number> = {};
  for (const { phase } of state.requests.values()) byPhase[phase] = (byPhase[phase] ?? 0) + 1;
  const inFlight = state.requests.size;
  const { accepted, ended, stale, conflicts, migrations } = state;
  const poisoned = state.poison.count(now);
  return {
    inFlight,
    accepted,
    ended,
    leaked: accepted - ended - inFlight,
    byPhase,
    stale,
    conflicts,
    migrations,
    poisoned,
    peers: state.frames.size,
  };
}
