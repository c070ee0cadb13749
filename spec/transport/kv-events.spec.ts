import { encode } from 'cbor-x';
import { expect } from 'chai';
import fc from 'fast-check';
import {
  type Bus,
  createMemoryBroker,
  followKv,
  type KvFault,
  type KvFollower,
  type KvOp,
  type KvTier,
  openKvPublisher,
  subjects,
} from '../../transport/index.js';
import { decodeKv, encodeKv, kvLimits } from '../../transport/kv-events.js';
import { type Broker, Gate, startBroker, stateOf } from './kit.js';

const blockTokens = 64;
const list = (...hashes: bigint[]): BigUint64Array => BigUint64Array.from(hashes);
const stored = (tier: KvTier, ...hashes: bigint[]): KvOp => ({ op: 'stored', tier, hashes: list(...hashes) });
const removed = (tier: KvTier, ...hashes: bigint[]): KvOp => ({ op: 'removed', tier, hashes: list(...hashes) });

/** What one rank holds, as `tier:hash` lines. */
class State {
  readonly lines = new Set<string>();

  apply(ops: readonly KvOp[]): void {
    for (const op of ops) {
      if (op.op === 'cleared') this.lines.clear();
      else {
        for (const hash of op.hashes) {
          if (op.op === 'stored') this.lines.add(`${op.tier}:${hash}`);
          else this.lines.delete(`${op.tier}:${hash}`);
        }
      }
    }
  }

  text(): string {
    return [...this.lines].sort().join(' ');
  }
}

interface View {
  readonly follower: KvFollower;
  readonly gate: Gate;
  readonly faults: KvFault[];
  of(rank: number): string;
}

function view(bus: Bus, incarnation: string, onChange: (rank: number, state: State) => void = () => {}): View {
  const states = new Map<number, State>();
  const gate = new Gate();
  const faults: KvFault[] = [];
  const follower = followKv(
    bus,
    { component: 'prefill', incarnation, blockTokens },
    {
      change(rank, ops) {
        const state = states.get(rank) ?? new State();
        states.set(rank, state);
        state.apply(ops);
        onChange(rank, state);
        gate.change();
      },
      quarantined(_rank, fault) {
        faults.push(fault);
        gate.change();
      },
    },
  );
  return { follower, gate, faults, of: (rank) => states.get(rank)?.text() ?? '' };
}

const publish = (bus: Bus, incarnation: string, over: { snapshotEvery?: number; turnBlocks?: number } = {}) =>
  openKvPublisher(bus, { component: 'prefill', incarnation, blockTokens, ...over });

/** A clock that moves when told to, and timers that fire in order. */
function manualClock() {
  let now = 0;
  let timers: { at: number; fire: () => void }[] = [];
  return {
    now: () => now,
    wallTime: () => now,
    setTimer(ms: number, fire: () => void) {
      const timer = { at: now + ms, fire };
      timers.push(timer);
      return () => {
        timers = timers.filter((other) => other !== timer);
      };
    },
    async pass(ms: number) {
      const end = now + ms;
      for (;;) {
        for (let turn = 0; turn < 30; turn++) await Promise.resolve();
        const next = timers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
        if (next === undefined) break;
        now = next.at;
        timers = timers.filter((other) => other !== next);
        next.fire();
      }
      now = end;
    },
  };
}

/** What no worker of this fleet may say, each with a block that nobody has. */
const wrongReports: readonly ((seq: number) => Uint8Array)[] = [
  (seq) => encodeKv({ seq, blockTokens: 16, ops: [stored('device', 99n)] }),
  (seq) =>
    encode({
      v: 1,
      seq,
      blockTokens,
      ops: [
        [0, 'device', new Uint8Array(8).fill(9)],
        [0, 'tape', new Uint8Array(8)],
      ],
    }),
  (seq) => encode({ v: 1, seq, blockTokens, ops: [[0, 'device', [2 ** 60]]] }),
  (seq) => encode({ v: 1, seq, blockTokens, ops: [[0, 'device', new Uint8Array((kvLimits.blocks + 1) * 8).fill(9)]] }),
  () => Uint8Array.of(0xff, 0x00),
];

describe('KV events on the wire', () => {
  it('carry all 64 bits of a hash, every tier and every operation', () => {
    const ops: KvOp[] = [
      stored('device', 2n ** 53n, 2n ** 53n + 1n, 2n ** 64n - 1n, 0n),
      removed('host', 1n),
      stored('disk'),
      { op: 'cleared' },
    ];
    expect(decodeKv(encodeKv({ seq: 7, blockTokens, ops }), blockTokens)).to.deep.equal({ seq: 7, blockTokens, ops });
    const part = { index: 1, of: 2 };
    const snapshot = { seq: 0, blockTokens, ops: [stored('host', 5n)], part };
    expect(decodeKv(encodeKv(snapshot), blockTokens)).to.deep.equal(snapshot);
  });

  it('are refused with a reason when anything about them is wrong', () => {
    const good = { v: 1, seq: 1, blockTokens, ops: [[0, 'device', new Uint8Array(8)]] };
    const codes: [string, unknown][] = [
      ['version', { ...good, v: 2 }],
      ['block-size', { ...good, blockTokens: 16 }],
      ['medium', { ...good, ops: [[0, 'GPU', new Uint8Array(8)]] }],
      ['medium', { ...good, ops: [[1, undefined, new Uint8Array(8)]] }],
      ['malformed', { ...good, seq: 0 }],
      ['malformed', { ...good, seq: 1.5 }],
      ['malformed', { ...good, ops: [[3, 'device', new Uint8Array(8)]] }],
      ['malformed', { ...good, ops: [[0, 'device', new Uint8Array(7)]] }],
      ['malformed', { ...good, ops: [[0, 'device', [2 ** 60]]] }],
      ['malformed', { ...good, ops: [7] }],
      ['malformed', { ...good, ops: 'all' }],
      ['malformed', { ...good, part: [1, 1] }],
      ['malformed', { ...good, part: [0, 1], ops: [[2]] }],
      ['malformed', [1, 2, 3]],
      ['oversized', { ...good, part: [0, kvLimits.parts + 1] }],
      ['oversized', { ...good, ops: Array.from({ length: kvLimits.ops + 1 }, () => [2]) }],
      ['oversized', { ...good, ops: [[0, 'device', new Uint8Array((kvLimits.blocks + 1) * 8)]] }],
    ];
    for (const [code, value] of codes) expect(decodeKv(encode(value), blockTokens), code).to.include({ code });
    expect(decodeKv(new Uint8Array(2 ** 20 + 1), blockTokens)).to.include({ code: 'oversized' });
    expect(decodeKv(Uint8Array.of(0xff, 0x00), blockTokens)).to.include({ code: 'malformed' });
    fc.assert(fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => void decodeKv(bytes, blockTokens)));
  });
});

describe('KV events', () => {
  it('make a router that starts late hold exactly what the worker holds, from snapshot and tail', async () => {
    const clock = manualClock();
    const broker = createMemoryBroker({ namespace: 'spec', clock });
    const publisher = publish(broker.connect(), 'p1', { snapshotEvery: 4 });
    const truth = new State();
    const turn = (...ops: KvOp[]) => {
      publisher.report(0, ops);
      truth.apply(ops);
      publisher.flush();
    };
    for (let n = 0n; n < 10n; n++) {
      turn(stored('device', n, n + 100n), removed('device', n - 2n));
      await clock.pass(1_000);
    }
    turn(stored('host', 3n));
    const late = view(broker.connect(), 'p1');
    await clock.pass(100);
    expect(late.of(0)).to.equal(truth.text());
    expect(late.follower.rank(0)).to.deep.equal({ state: 'live', seq: 11 });
    expect(late.follower.counters.snapshots).to.equal(1);
    expect(late.follower.counters.batches).to.be.at.most(4);
  });

  it('of every rank of a worker are numbered and kept apart', async () => {
    const clock = manualClock();
    const broker = createMemoryBroker({ namespace: 'spec', clock });
    const publisher = publish(broker.connect(), 'p1');
    publisher.report(0, [stored('device', 1n)]);
    publisher.report(3, [stored('device', 2n), removed('device', 9n), stored('device', 2n)]);
    publisher.flush();
    publisher.flush();
    const router = view(broker.connect(), 'p1');
    await clock.pass(100);
    expect([router.of(0), router.of(3)]).to.deep.equal(['device:1', 'device:2']);
    expect([publisher.seq(0), publisher.seq(3), publisher.seq(1)]).to.deep.equal([1, 1, 0]);
    expect(publisher.counters).to.include({ batches: 2, blocks: 2 });
  });

  it('that got lost leave a rank empty until a snapshot says what is right, also when it was the last one', async () => {
    const clock = manualClock();
    let lose = false;
    const broker = createMemoryBroker({
      namespace: 'spec',
      clock,
      deliver: ({ kind, subject }, arrive) => {
        if (!(lose && kind === 'core' && subject.includes('.kv.'))) queueMicrotask(arrive);
      },
    });
    const publisher = publish(broker.connect(), 'p1');
    const router = view(broker.connect(), 'p1');
    const turn = (...ops: KvOp[]) => {
      publisher.report(0, ops);
      publisher.flush();
    };
    turn(stored('device', 1n, 2n));
    await clock.pass(10);
    lose = true;
    turn(removed('device', 1n));
    lose = false;
    turn(stored('device', 3n));
    await clock.pass(2);
    expect(router.of(0)).to.be.oneOf(['', 'device:2 device:3']);
    await clock.pass(1_000);
    expect(router.of(0)).to.equal('device:2 device:3');
    expect(router.follower.counters.gaps).to.equal(1);
    lose = true;
    turn(removed('device', 2n));
    lose = false;
    await clock.pass(15_000);
    expect(router.of(0)).to.equal('device:3');
    expect(router.follower.rank(0)).to.deep.equal({ state: 'live', seq: 4 });
  });

  it('of a turn that changes more than a batch may say are told as a snapshot, in as many parts as it takes', async () => {
    const clock = manualClock();
    const broker = createMemoryBroker({ namespace: 'spec', clock });
    const publisher = publish(broker.connect(), 'p1', { turnBlocks: 10 });
    const router = view(broker.connect(), 'p1');
    publisher.report(0, [stored('device', 1n)]);
    publisher.flush();
    const many = BigUint64Array.from({ length: kvLimits.blocks + 5 }, (_, n) => BigInt(n));
    publisher.report(0, [{ op: 'stored', tier: 'disk', hashes: many }]);
    publisher.flush();
    await clock.pass(1_000);
    expect(publisher.held(0)).to.equal(many.length);
    expect(router.of(0).split(' ')).to.have.length(many.length + 1);
    expect(router.follower.counters).to.include({ snapshots: 1, gaps: 0 });
  });

  it('that are wrong put the rank out, say why once, and count for nothing until a whole snapshot is right', async () => {
    const clock = manualClock();
    const broker = createMemoryBroker({ namespace: 'spec', clock });
    const worker = broker.connect();
    const publisher = publish(worker, 'p1');
    const router = view(broker.connect(), 'p1');
    const to = subjects('spec').kv('p1', 0);
    publisher.report(0, [stored('device', 1n)]);
    publisher.flush();
    await clock.pass(1);
    worker.send(to, encodeKv({ seq: 2, blockTokens: 16, ops: [stored('device', 7n)] }));
    worker.send(to, encode({ v: 1, seq: 3, blockTokens, ops: [[0, 'tape', new Uint8Array(8)]] }));
    worker.send(to, encodeKv({ seq: 4, blockTokens, ops: [stored('device', 8n)] }));
    for (let turn = 0; turn < 20; turn++) await Promise.resolve();
    expect(router.of(0)).to.equal('');
    expect(router.follower.rank(0)?.state).to.equal('quarantined');
    expect(router.faults).to.have.length(1);
    expect(router.faults[0]).to.deep.equal({ code: 'block-size', detail: 'blocks of 16, 64 wanted' });
    expect(router.follower.counters.faults).to.equal(2);
    await clock.pass(1_000);
    expect(router.of(0)).to.equal('device:1');
  });

  it('of a worker that always tells blocks of another size never reach the index, and cost ever fewer questions', async () => {
    const clock = manualClock();
    const broker = createMemoryBroker({ namespace: 'spec', clock });
    const publisher = openKvPublisher(broker.connect(), { component: 'prefill', incarnation: 'p1', blockTokens: 16 });
    let told = 0;
    const router = view(broker.connect(), 'p1', () => told++);
    publisher.report(0, [stored('device', 1n)]);
    publisher.flush();
    await clock.pass(60_000);
    expect(told).to.equal(0);
    expect(router.faults[0]).to.include({ code: 'block-size' });
    expect(router.follower.counters.asked).to.be.below(20);
  });

  it('name only what their worker held after some batch, whatever is lost, repeated, late or wrong, and end exact', async () => {
    const change = fc.record({
      ops: fc.array(
        fc.record({
          kind: fc.constantFrom('stored', 'stored', 'removed', 'cleared'),
          tier: fc.constantFrom<KvTier>('device', 'host'),
          hashes: fc.array(fc.bigInt({ min: 0n, max: 9n }), { maxLength: 4 }),
        }),
        { maxLength: 3 },
      ),
      fate: fc.constantFrom('well', 'well', 'well', 'lost', 'twice', 'late', 'spoilt'),
      wrong: fc.constantFrom(...wrongReports),
      ms: fc.constantFrom(0, 1, 400, 3_000),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 25 }), fc.boolean(), async (turns, frequent) => {
        const clock = manualClock();
        let fate = 'well';
        const broker = createMemoryBroker({
          namespace: 'spec',
          clock,
          deliver: ({ kind, subject }, arrive) => {
            if (kind !== 'core' || !subject.includes('.kv.')) return queueMicrotask(arrive);
            if (fate === 'lost') return;
            if (fate === 'late') return void clock.setTimer(2, arrive);
            queueMicrotask(arrive);
            if (fate === 'twice') queueMicrotask(arrive);
          },
        });
        const bus = broker.connect();
        const publisher = publish(bus, 'p1', frequent ? { snapshotEvery: 3 } : {});
        const truth = new State();
        const history = new Map([[0, '']]);
        const router = view(broker.connect(), 'p1');
        const check = () => {
          const rank = router.follower.rank(0);
          if (rank?.state === 'live') expect(router.of(0)).to.equal(history.get(rank.seq));
          else expect(router.of(0)).to.equal('');
        };
        for (const { ops, fate: next, wrong, ms } of turns) {
          const given: KvOp[] = ops.map(({ kind, tier, hashes }) =>
            kind === 'cleared' ? { op: 'cleared' } : { op: kind as 'stored', tier, hashes: list(...hashes) },
          );
          fate = next;
          publisher.report(0, given);
          truth.apply(given);
          publisher.flush();
          history.set(publisher.seq(0), truth.text());
          fate = 'well';
          // In between, with the number of the batch that is due: it names blocks that the worker never had.
          if (next === 'spoilt') bus.send(subjects('spec').kv('p1', 0), wrong(publisher.seq(0) + 1));
          await clock.pass(ms);
          check();
        }
        await clock.pass(60_000);
        check();
        expect(router.of(0)).to.equal(truth.text());
        router.follower.stop();
        publisher.stop();
      }),
      { numRuns: 100 },
    );
  }).timeout(60_000);
});

describe('KV events over a real broker', () => {
  let broker: Broker;
  before(async () => {
    broker = await startBroker();
  });
  after(() => broker.stop());

  it('bring a router back to the exact state after the broker was killed, and a late one there from the rollup', async () => {
    const worker = await broker.connect('prefill');
    const gateway = await broker.connect('gateway');
    const publisher = publish(worker, 'real-1', { snapshotEvery: 8 });
    const router = view(gateway, 'real-1');
    const truth = new State();
    const turn = (...ops: KvOp[]) => {
      publisher.report(0, ops);
      truth.apply(ops);
      publisher.flush();
    };
    for (let n = 0n; n < 30n; n++) turn(stored('device', n, 2n ** 63n + n), removed('device', n - 5n));
    await router.gate.until(() => router.of(0) === truth.text(), 15_000, 'the state before');
    await broker.kill();
    await stateOf(worker, 'down');
    turn(removed('device', 29n), stored('host', 1n));
    await broker.restart();
    await router.gate.until(() => router.of(0) === truth.text(), 15_000, 'the state after');
    turn(stored('disk', 77n));
    const late = view(await broker.connect('gateway'), 'real-1');
    await late.gate.until(() => late.of(0) === truth.text(), 15_000, 'the state of the late one');
    expect(late.follower.counters.gaps).to.equal(0);
    expect(late.follower.counters.batches).to.be.at.most(9);
    for (const each of [router, late]) each.follower.stop();
    publisher.stop();
  }).timeout(60_000);
});
