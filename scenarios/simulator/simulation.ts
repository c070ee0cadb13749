/**
 * One run of a schedule: a whole deployment in one thread and virtual time, with the same frontend, router, worker and supervisor code as
 * the real one, over a simulated broker, network and process table (design 7).
 */
import { createHash } from 'node:crypto';
import { isFull, seededDispatcher, seededRandom } from '../../actors/index.js';
import type { NodeParts, ResolvedConfig } from '../../supervisors/index.js';
import { createMemoryBroker } from '../../transport/index.js';
import { ask, detokenizer, type Seen } from './client.js';
import { inexcusable } from './excuses.js';
import { faults } from './faults.js';
import { createInvariants } from './invariants.js';
import { createMachine, type Machine } from './machine.js';
import type { Mutation } from './mutation.js';
import { createNetwork } from './network.js';
import { type Life, type Node, startNode } from './node.js';
import { leftovers, promptsOf, untruths } from './rest.js';
import type { Schedule } from './schedule.js';
import { createTimeline } from './timeline.js';

export interface SimulationOptions {
  readonly parts: NodeParts;
  readonly config: ResolvedConfig;
  readonly mutation?: Mutation;
  /** Lines of what happened, for people. */
  readonly trace?: (line: string) => void;
}

export interface SimulationResult {
  readonly seed: number;
  /** What must never be, and was; the run ends with the first. */
  readonly violations: readonly string[];
  readonly requests: number;
  readonly outcomes: Readonly<Record<string, number>>;
  /** Of requests that failed: how many with which code. */
  readonly codes: Readonly<Record<string, number>>;
  readonly events: number;
  readonly virtualMs: number;
  readonly longestPauseMs: number;
  /** SHA-256 over everything that clients saw and every process did: equal for equal schedules. */
  readonly digest: string;
}

/** After the last request and fault everything must come to rest within this. */
const restMs = 120_000;
/** Messages that one event may cause before it counts as a livelock. */
const turnLimit = 100_000;

export async function simulate(schedule: Schedule, options: SimulationOptions): Promise<SimulationResult> {
  const { parts, mutation = {}, trace } = options;
  const config = settings(options.config, schedule);
  const random = seededRandom(schedule.seed);
  const timeline = createTimeline();
  const turns = seededDispatcher(seededRandom(schedule.seed + 1));
  const machines = new Map<string, Machine>();
  const violations: string[] = [];
  const outcomes: Record<string, number> = {};
  const hash = createHash('sha256');
  const seen: Seen[] = [];
  /** Attempts that were given up. */
  let lost = 0;

  const note = (line: string) => {
    hash.update(line);
    trace?.(`${timeline.now().toFixed(3).padStart(12)}  ${line}`);
  };
  const violated = (what: string) => {
    violations.push(what);
    note(`VIOLATED: ${what}`);
  };
  const network = createNetwork({
    timeline,
    random: seededRandom(schedule.seed + 2),
    rates: schedule.rates,
    machine: (name) => machines.get(name),
    broker: () => broker,
  });
  const broker = createMemoryBroker({
    namespace: 'sim',
    clock: { now: timeline.now, wallTime: timeline.now, setTimer: timeline.after },
    deliver: network.deliver,
  });
  const waitingAt = (life: Life) =>
    seen.filter((client) => client.outcome === 'waiting' && clients.get(client)?.life === life);
  const undisturbed = schedule.faults.length === 0 && Object.values(schedule.rates).every((rate) => rate === 0);
  const invariants = createInvariants({
    now: timeline.now,
    node: () => node,
    waiting: waitingAt,
    staleMs: undisturbed ? promptlyMs : quietMs,
    slots: schedule.slots,
  });
  let births = 0;
  const node: Node = startNode({
    parts,
    schedule,
    config,
    random,
    waiting: (life) => waitingAt(life).length > 0,
    sameIncarnation: mutation.sameIncarnation === true,
    ports: {
      preprocessor: { prepare: (_api, body) => ({ ok: true, prepared: body as never }) },
      detokenizers: { open: detokenizer },
      summary: () => {},
    },
    machine(name) {
      const machine = createMachine(
        {
          timeline,
          broker,
          turns,
          mutate: mutation,
          watch: invariants.watch,
          log: (level, actor, message, fields) => {
            // Two gateways may give out one slot: the worker refuses one of them.
            if (message === 'attempt lost' && !isFull(String(fields?.code))) lost++;
            if (level !== 'debug') note(`${level} ${actor}: ${message} ${fields === undefined ? '' : shown(fields)}`);
          },
        },
        name,
        schedule.seed * 1_000 + ++births,
      );
      machines.set(name, machine);
      return machine;
    },
    begun: ({ machine }) => note(`${machine.name} starts`),
    ended(life, text) {
      machines.delete(life.machine.name);
      note(`${life.machine.name} ended: ${text}`);
      if (life.role === 'gateway') cutOff(life);
    },
  });

  /** Tickets are unique per gateway incarnation. */
  let tickets = 0;
  const clients = new Map<Seen, { readonly life: Life; readonly ticket: number }>();
  /** Its clients see their connections close. */
  function cutOff(life: Life): void {
    for (const [client, { life: of }] of clients) {
      if (of !== life || client.outcome !== 'waiting') continue;
      client.outcome = 'cut off';
      client.endedAt = timeline.now();
    }
  }
  function send(index: number): void {
    const planned = schedule.requests[index] as Schedule['requests'][number];
    const ticket = ++tickets;
    const { seen: client, submit } = ask(planned, index, ticket, {
      now: timeline.now,
      violated,
      ended: ({ outcome, error, tokens }) =>
        note(`request ${index} ${outcome} ${error?.code ?? ''} ${tokens.join(',')}`),
    });
    seen.push(client);
    const life = node.lives.get(`gateway-${planned.gateway}`);
    if (life?.gateway === undefined || life.machine.state === 'dead' || !life.listening) {
      client.outcome = 'refused';
      return;
    }
    clients.set(client, { life, ticket });
    const { gateway, machine } = life;
    machine.run(() => machine.kernel.tell(gateway.frontend, submit));
    if (planned.leavesAfterMs === undefined) return;
    timeline.after(planned.leavesAfterMs, () => {
      if (client.outcome !== 'waiting') return;
      client.outcome = 'left';
      client.endedAt = timeline.now();
      machine.run(() => machine.kernel.tell(gateway.frontend, { type: 'ClientGone', ticket }));
    });
  }

  let nextLook = 0;
  /** Until `when`, or something is violated. Promises get their turns between two events. */
  async function runUntil(when: number, done: () => boolean = () => false): Promise<void> {
    while (timeline.next() <= when && violations.length === 0 && !done()) {
      if (timeline.next() >= nextLook) {
        nextLook = timeline.next() + lookMs;
        for (const wrong of invariants.look()) violated(wrong);
      }
      timeline.step();
      turns.drain(turnLimit);
      for (let turn = 0; turn < microtasks; turn++) await undefined;
      turns.drain(turnLimit);
    }
  }

  /**
   * Where nothing was lost, whatever a request held is free again at once. Otherwise whoever holds something for another lets go of it by
   * himself, the last after half a minute.
   */
  async function comeToRest(): Promise<void> {
    const wait = (done: () => boolean) => runUntil(timeline.now() + askPatienceMs, done);
    await settle(undisturbed ? promptlyMs : quietMs, () => leftovers(node, wait));
    const prompts = promptsOf(schedule);
    await settle(quietMs, () => untruths(node, prompts, wait));
  }

  /** Looks again and again until nothing is found, at most so long. */
  async function settle(forMs: number, look: () => Promise<string[]>): Promise<void> {
    const until = timeline.now() + forMs;
    for (let pause = firstLookMs; ; pause *= 2) {
      await runUntil(Math.min(until, timeline.now() + pause));
      const found = await look();
      if (found.length === 0 || violations.length > 0) return;
      if (timeline.now() < until) continue;
      for (const each of found) violated(each);
      return;
    }
  }

  let up = false;
  node.up.then(
    () => {
      up = true;
    },
    (error: unknown) => violated(`the node did not start: ${String(error)}`),
  );
  await runUntil(config.node.startMs, () => up);
  if (!up && violations.length === 0) violated('the node did not start');
  const begin = timeline.now() + settleMs;
  await runUntil(begin);
  for (const [index, { at }] of schedule.requests.entries()) timeline.after(at, () => send(index));
  let troubles = 0;
  for (const fault of schedule.faults) {
    timeline.after(fault.at, () => {
      note(`fault ${fault.kind} ${fault.target} ${fault.forMs}`);
      troubles++;
      faults[fault.kind]({ fault, node, network, broker, timeline, config, over: () => void troubles-- });
    });
  }
  const last = Math.max(0, ...schedule.requests.map(({ at }) => at), ...schedule.faults.map(({ at }) => at));
  await runUntil(begin + last);
  const waiting = () => seen.some(({ outcome }) => outcome === 'waiting') || troubles > 0;
  await runUntil(begin + last + restMs, () => !waiting());
  if (violations.length === 0) {
    for (const { index, outcome, error } of seen) {
      if (outcome === 'waiting') violated(`request ${index} still waits ${restMs} ms after the last event`);
      const why = outcome === 'failed' ? inexcusable(error?.code ?? '', schedule) : undefined;
      if (why !== undefined) violated(`request ${index} ${why}`);
    }
  }
  if (violations.length === 0) await comeToRest();
  // A worker gives up what is overdue, and a gateway that hears no broker does not: its time stands still.
  const healthy = schedule.faults.length === 0 && schedule.totalMs === undefined;
  if (healthy && lost > 0) violated(`${lost} attempts were lost, and nobody was ill`);
  let longestPauseMs = 0;
  const codes: Record<string, number> = {};
  for (const { outcome, error, longestPauseMs: pause } of seen) {
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    if (outcome === 'failed') codes[error?.code ?? ''] = (codes[error?.code ?? ''] ?? 0) + 1;
    longestPauseMs = Math.max(longestPauseMs, pause);
  }
  return {
    seed: schedule.seed,
    violations,
    requests: seen.length,
    outcomes,
    codes,
    events: timeline.events,
    virtualMs: timeline.now(),
    longestPauseMs,
    digest: hash.digest('hex'),
  };
}

/**
 * Prompts here are short: thresholds that divide them, not all on one side. What a router assumes of a cache, and a session, ends within the
 * run.
 */
function settings(config: ResolvedConfig, schedule: Schedule): ResolvedConfig {
  const { flow, policy, sessions, classes, queueMs, totalMs } = schedule;
  return {
    ...config,
    disagg: { ...config.disagg, flow, policy, maxLocalTokens: 100, maxLocalPrefillLength: 100 },
    routing: {
      ...config.routing,
      assumeMs: 1_000,
      ...(sessions === true && { sessionTtlMs: 1_000 }),
      ...(classes === true && { classes: queueClasses }),
    },
    deadlines: {
      ...config.deadlines,
      ...(queueMs !== undefined && { queueMs }),
      ...(totalMs !== undefined && { totalMs }),
    },
  };
}

const queueClasses: ResolvedConfig['routing']['classes'] = [
  { name: 'chat', family: 'chat', policy: 'fcfs', quantum: 2 },
  { name: 'batch', family: 'batch', policy: 'wspt', quantum: 1, requestsPerWorker: 4 },
  { name: 'other', policy: 'lcfs', quantum: 1 },
];

/** Between two looks at what must hold all the time. */
const lookMs = 200;
/** After the last process is up, until all have heard of each other. */
const settleMs = 1_000;
/** Kept tokens and leases end by themselves within this. */
const quietMs = 45_000;
const promptlyMs = 2_000;
const firstLookMs = 500;
const askPatienceMs = 2_000;
/** The longest chain of promises between a bus and an actor, and some more. */
const microtasks = 12;

function shown(fields: Record<string, unknown>): string {
  return JSON.stringify(fields, (_key, value: unknown) => (value instanceof Error ? value.message : value));
}
