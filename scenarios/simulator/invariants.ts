/**
 * What must hold all the time, not only at rest: looked at again and again while a schedule runs. A process that is told something a moment
 * later than another is no liar, so what is wrong counts when it is still wrong at the next look.
 */
import type { Behaviour } from '../../actors/index.js';
import type { KvOp } from '../../transport/index.js';
import type { Seen } from './client.js';
import type { Life, Node } from './node.js';

export interface Invariants {
  /** The behaviour, its state and what it hears known from now on. */
  watch<M, S>(machine: string, behaviour: Behaviour<M, S>): Behaviour<M, S>;
  /** What is wrong, and was at the last look. */
  look(): string[];
}

export interface InvariantSurroundings {
  now(): number;
  node(): Node;
  /** Requests whose clients wait, by the life of their gateway. */
  waiting(life: Life): Iterable<Seen>;
  /** A router may believe in a block for so long after it has left its cache: events may be lost, and are mended. */
  readonly staleMs: number;
  readonly slots: number;
}

/** Of one gateway's actors, as far as it matters here. */
interface Gateway {
  frontend: { readonly requests: ReadonlyMap<number, unknown> } | undefined;
  router: { readonly placed: ReadonlyMap<number, unknown> } | undefined;
  /** By worker: blocks that its router was told of. */
  readonly claims: Map<string, Set<bigint>>;
}

type Heard =
  | { readonly type: 'KvChange'; readonly incarnation: string; readonly ops: readonly KvOp[] }
  | { readonly type: 'InstanceGone'; readonly incarnation: string };

export function createInvariants(around: InvariantSurroundings): Invariants {
  const gateways = new Map<string, Gateway>();
  let before: ReadonlySet<string> = new Set();

  const gatewayOf = (machine: string): Gateway => {
    let gateway = gateways.get(machine);
    if (gateway === undefined) {
      gateway = { frontend: undefined, router: undefined, claims: new Map() };
      gateways.set(machine, gateway);
    }
    return gateway;
  };

  function told({ claims }: Gateway, message: Heard): void {
    if (message.type === 'InstanceGone') claims.delete(message.incarnation);
    if (message.type !== 'KvChange') return;
    let claimed = claims.get(message.incarnation);
    if (claimed === undefined) {
      claimed = new Set();
      claims.set(message.incarnation, claimed);
    }
    for (const change of message.ops) {
      if (change.op === 'cleared') claimed.clear();
      else for (const hash of change.hashes) change.op === 'stored' ? claimed.add(hash) : claimed.delete(hash);
    }
  }

  function* ofGateway(life: Life, { frontend, router, claims }: Gateway): Generator<string> {
    const { name } = life.machine;
    const clients = [...around.waiting(life)].length;
    if (frontend !== undefined && frontend.requests.size > clients)
      yield `${name} has ${frontend.requests.size} requests of ${clients} clients`;
    for (const num of router?.placed.keys() ?? [])
      if (frontend?.requests.has(num) === false) yield `${name} has placed request ${num}, which is over`;
    const engines = new Map([...around.node().lives.values()].map(({ machine, engine }) => [machine.name, engine]));
    const oldest = around.now() - around.staleMs;
    for (const [worker, claimed] of claims) {
      const engine = engines.get(worker);
      if (engine === undefined) continue;
      for (const hash of claimed) {
        const left = engine.leftAt(hash);
        if (left < oldest) yield `${name} believes block ${hash} at ${worker}, which has it no more`;
      }
    }
  }

  function* ofWorker({ machine: { name }, engine }: Life): Generator<string> {
    if (engine === undefined) return;
    const { busySlots, waiting, usedKvBlocks, exportedBlocks } = engine.engine.load();
    if (busySlots < 0 || busySlots > around.slots) yield `${name} has ${busySlots} of ${around.slots} slots busy`;
    for (const [what, count] of Object.entries({ waiting, usedKvBlocks, exportedBlocks }))
      if (count < 0) yield `${name}: ${what} is ${count}`;
  }

  return {
    watch(machine, behaviour) {
      const { name } = behaviour;
      if (name !== 'router' && name !== 'frontend') return behaviour;
      const gateway = gatewayOf(machine);
      return {
        ...behaviour,
        start(ctx) {
          const state = behaviour.start(ctx);
          gateway[name] = state as never;
          return state;
        },
        handle(state, message, ctx) {
          if (name === 'router') told(gateway, message as Heard);
          return behaviour.handle(state, message, ctx);
        },
      };
    },
    look() {
      const found: string[] = [];
      for (const life of around.node().lives.values()) {
        if (life.machine.state !== 'running') continue;
        const gateway = gateways.get(life.machine.name);
        if (gateway !== undefined) found.push(...ofGateway(life, gateway));
        found.push(...ofWorker(life));
      }
      const again = found.filter((each) => before.has(each));
      before = new Set(found);
      return again;
    },
  };
}
