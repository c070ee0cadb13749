import { expect } from 'chai';
import fc from 'fast-check';
import { type Entry, Ledger } from '../../../actors/router/ledger.js';
import { type Placement, type ReplicaFrame, ReplicaVoice, voiceLimits } from '../../../actors/router/replica-voice.js';
import { type Claim, giveWayMs, Replicas } from '../../../actors/router/replicas.js';
import { fits } from '../../../transport/envelope.js';
import { bodies, decodeCbor, encodeCbor } from '../../../transport/index.js';

const blockTokens = 64;
const hashesOf = (prompt: number, blocks: number) =>
  BigUint64Array.from({ length: blocks }, (_, at) => BigInt(prompt) * 1_000n + BigInt(at) + 1n);

function placement(num: number, given: Partial<Placement> = {}): Placement {
  return {
    num,
    attempt: 1,
    decode: `decode-${num % 3}`,
    prefill: num % 4 === 0 ? undefined : `prefill-${num % 2}`,
    units: 1 + (num % 2),
    promptTokens: 64 * 3 + 10,
    toCompute: 100,
    hashes: hashesOf(num % 5, 3),
    ...given,
  };
}

/** A router that tells, with what it has booked itself. */
function teller(origin = 'gateway-a') {
  const voice = new ReplicaVoice();
  voice.listeners = 1;
  const ledger = new Ledger(blockTokens);
  const key = ({ num, attempt }: Placement, incarnation: string) => ({ origin, num, attempt, incarnation });
  const held = new Map<number, Placement>();
  const over = (num: number) => {
    const p = held.get(num);
    if (p === undefined) return;
    held.delete(num);
    if (p.prefill !== undefined) ledger.free(key(p, p.prefill));
    ledger.free(key(p, p.decode));
    voice.over(num);
  };
  return {
    origin,
    voice,
    ledger,
    place(p: Placement) {
      over(p.num);
      held.set(p.num, p);
      const base: Omit<Entry, 'incarnation' | 'units' | 'prefillTokens'> = { origin, ...p, at: 0 };
      const onDecode = p.prefill === undefined ? p.toCompute : 0;
      ledger.add({ ...base, incarnation: p.decode, units: p.units, prefillTokens: onDecode });
      if (p.prefill !== undefined) {
        ledger.add({ ...base, incarnation: p.prefill, units: 1, prefillTokens: p.toCompute });
      }
      voice.placed(p);
    },
    began(num: number) {
      const p = held.get(num);
      if (p === undefined) return;
      ledger.prefillDone(key(p, p.prefill ?? p.decode));
      voice.began(num);
    },
    handed(num: number) {
      const p = held.get(num);
      if (p === undefined) return;
      if (p.prefill !== undefined) ledger.free(key(p, p.prefill));
      voice.handed(num);
    },
    over,
  };
}

const overTheWire = (frame: ReplicaFrame): ReplicaFrame => {
  const body = decodeCbor(encodeCbor(frame));
  if (!fits('Replica', body)) throw new Error('a frame that its schema refuses');
  return body;
};

function hearer(...origins: string[]) {
  const ledger = new Ledger(blockTokens);
  const replicas = new Replicas('gateway-me', ledger, undefined);
  for (const origin of origins) replicas.up(origin);
  return { ledger, replicas };
}

const workers = ['decode-0', 'decode-1', 'decode-2', 'prefill-0', 'prefill-1'];
const loads = (ledger: Ledger) => workers.map((worker) => ({ worker, ...ledger.load(worker) }));

describe('Dispatches of other routers', () => {
  it('are in the ledger exactly as there, once a snapshot has followed whatever was lost, repeated and reordered', () => {
    const step = fc.oneof(
      fc.record({ op: fc.constant('place' as const), num: fc.nat(40) }),
      fc.record({ op: fc.constantFrom('began' as const, 'handed' as const, 'over' as const), num: fc.nat(40) }),
      fc.record({ op: fc.constant('tell' as const), fate: fc.constantFrom('kept', 'kept', 'lost', 'twice', 'late') }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 120 }), (steps) => {
        const a = teller();
        const { ledger, replicas } = hearer(a.origin);
        const late: ReplicaFrame[] = [];
        let now = 0;
        const hear = (frame: ReplicaFrame) => {
          if (replicas.hear(a.origin, overTheWire(frame), now).ask) a.voice.snapshot();
        };
        for (const each of steps) {
          now += 7;
          if (each.op === 'place') a.place(placement(each.num));
          else if (each.op !== 'tell') a[each.op](each.num);
          else {
            for (const frame of a.voice.frames(now)) {
              if (each.fate === 'late') late.push(frame);
              else if (each.fate !== 'lost') hear(frame);
              if (each.fate === 'twice') hear(frame);
              if (each.fate === 'kept') for (const older of late.splice(0)) hear(older);
            }
          }
        }
        // What was said last may be lost too: the next frame shows it, and a snapshot mends it.
        for (const at of [1, 2]) for (const frame of a.voice.frames(now + at * 1_000)) hear(frame);
        expect(loads(ledger)).to.deep.equal(loads(a.ledger));
        expect(replicas.complete).to.equal(true);
        replicas.gone(a.origin);
        expect(ledger.size).to.equal(0);
      }),
      { numRuns: 300 },
    );
  });

  it('cost one frame for a burst, and end with one that says so', () => {
    const a = teller();
    for (let num = 0; num < 100; num++) a.place(placement(num));
    const burst = a.voice.frames(0);
    expect(burst).to.have.length(1);
    expect(burst[0]?.placed).to.have.length(100);
    expect(a.voice.dirty).to.equal(false);
    a.over(7);
    expect(a.voice.frames(1)[0]).to.deep.include({ seq: 2, over: [7], held: 99 });
  });

  it('fit the broker however many they are: a snapshot of 6,000 long prompts comes in parts, with the hashes that there is room for', () => {
    const a = teller();
    const long = { promptTokens: 64 * 300, hashes: hashesOf(1, 300) };
    for (let num = 0; num < 6_000; num++) a.place(placement(num, long));
    a.voice.snapshot();
    const parts = a.voice.frames(0);
    expect(parts.length).to.be.greaterThan(6_000 / voiceLimits.framePlaced - 1);
    const { ledger, replicas } = hearer(a.origin);
    let hashBytes = 0;
    for (const frame of parts) {
      const bytes = encodeCbor(frame);
      expect(bytes.length).to.be.lessThan(512 * 1024);
      for (const { hashes } of frame.placed) hashBytes += hashes.length;
      replicas.hear(a.origin, overTheWire(frame), 0);
    }
    expect(hashBytes).to.be.greaterThan(0).and.at.most(voiceLimits.snapshotHashBytes);
    expect(replicas.complete).to.equal(true);
    for (const worker of workers) expect(ledger.load(worker).units).to.equal(a.ledger.load(worker).units);
  });

  it('become a snapshot when more has changed than a frame may say', () => {
    const a = teller();
    const hashes = hashesOf(0, 0);
    for (let num = 0; num < voiceLimits.changes; num++) a.place(placement(num, { hashes }));
    expect(a.voice.owes).to.equal(false);
    a.place(placement(voiceLimits.changes));
    expect(a.voice.owes).to.equal(true);
  });

  it('go when their router leaves, and when it says nothing for ten looks while the broker is there, and not before', () => {
    const a = teller();
    a.place(placement(1));
    a.voice.snapshot();
    const { ledger, replicas } = hearer(a.origin);
    for (const frame of a.voice.frames(0)) replicas.hear(a.origin, frame, 0);
    for (let look = 0; look < 50; look++) expect(replicas.look(false).room).to.equal(false);
    const asked: number[] = [];
    for (let look = 1; look <= 9; look++) if (replicas.look(true).ask.length > 0) asked.push(look);
    expect(asked).to.deep.equal([3, 4, 5, 6, 7, 8, 9]);
    expect(ledger.size).to.equal(2);
    expect(replicas.look(true).room).to.equal(true);
    expect(ledger.size).to.equal(0);
    expect(replicas.complete).to.equal(false);
  });

  it('of a router that the registry does not know are not counted, but it is answered', () => {
    const a = teller();
    a.place(placement(1));
    a.voice.ask('gateway-me');
    const { ledger, replicas } = hearer();
    const [frame] = a.voice.frames(0);
    expect(replicas.hear(a.origin, frame as ReplicaFrame, 0)).to.deep.equal({ ask: false, room: false, asked: true });
    expect(ledger.size).to.equal(0);
    expect(replicas.facts().strangers).to.equal(1);
  });

  it('that name no worker are refused, and the rest is asked for again', () => {
    const a = teller();
    a.place(placement(1));
    a.place(placement(2));
    a.voice.snapshot();
    const { ledger, replicas } = hearer(a.origin);
    const [frame] = a.voice.frames(0) as [ReplicaFrame];
    const [first, second] = frame.placed;
    if (first === undefined || second === undefined) throw new Error('two were placed');
    const heard = replicas.hear(a.origin, { ...frame, placed: [{ ...first, decode: 99 }, second] }, 0);
    expect(heard.ask).to.equal(true);
    expect(replicas.facts().refused).to.equal(1);
    expect(ledger.entriesOf(a.origin).map(({ num }) => num)).to.deep.equal([2, 2]);
  });

  it('are refused by the schema where they are malformed', () => {
    const [frame] = teller().voice.frames(0) as [ReplicaFrame];
    const item = { num: 1, attempt: 1, decode: 0, stage: 0, units: 1, promptTokens: 1, toCompute: 0 };
    expect(fits('Replica', frame)).to.equal(true);
    for (const bad of [
      { seq: -1 },
      { part: [0, 0] },
      { workers: ['a.b'] },
      { placed: [{ ...item, hashes: new Uint8Array(7) }] },
      { placed: [{ ...item, hashes: new Uint8Array(2_056) }] },
      { placed: [{ ...item, stage: 3, hashes: new Uint8Array(8) }] },
      { over: [1.5] },
      { want: ['*'] },
      { waiting: [{ model: 'm', again: true, requests: 0, next: 1, leftMs: 1 }] },
    ]) {
      expect(fits('Replica', { ...frame, ...bad }), JSON.stringify(bad)).to.equal(false);
    }
    expect(bodies).to.have.property('Replica');
  });
});

describe('A free slot', () => {
  const mine: Claim = { model: 'mock', again: false, queueBy: 30_000, units: 1 };
  function waitingElsewhere(...waiters: { num: number; again: boolean; queueBy: number }[]) {
    const a = teller();
    const { replicas } = hearer(a.origin);
    a.voice.snapshot();
    for (const waiter of waiters) a.voice.waits({ model: 'mock', ...waiter });
    const say = (now: number) => {
      for (const frame of a.voice.frames(now)) replicas.hear(a.origin, overTheWire(frame), now);
    };
    say(0);
    return { a, replicas, say };
  }

  it('is left by a new request to one elsewhere whose client sees its stream stand, for a while', () => {
    const { replicas } = waitingElsewhere({ num: 5, again: true, queueBy: 60_000 });
    expect(replicas.givesWay(mine, 1, 0)).to.equal(true);
    expect(replicas.givesWay(mine, 1, giveWayMs - 1)).to.equal(true);
    expect(replicas.givesWay(mine, 1, giveWayMs)).to.equal(false);
  });

  it('is not left to it where there are slots for both, or none to leave', () => {
    const { replicas } = waitingElsewhere({ num: 5, again: true, queueBy: 60_000 });
    expect(replicas.givesWay(mine, 2, 0)).to.equal(false);
    expect(replicas.givesWay(mine, 0, 0)).to.equal(false);
    // No patience was used up by that.
    expect(replicas.givesWay(mine, 1, 10 * giveWayMs)).to.equal(true);
  });

  it('goes to the next of those that stand, and then to the new request that came first, wherever it waits', () => {
    const { a, replicas, say } = waitingElsewhere(
      { num: 5, again: true, queueBy: 60_000 },
      { num: 6, again: false, queueBy: 20_000 },
    );
    expect(replicas.givesWay({ ...mine, again: true, queueBy: 50_000 }, 1, 0)).to.equal(false);
    expect(replicas.givesWay({ ...mine, again: true, queueBy: 70_000 }, 1, 0)).to.equal(true);
    a.voice.waitsNot(5);
    say(10);
    expect(replicas.givesWay(mine, 1, 10)).to.equal(true);
    expect(replicas.givesWay({ ...mine, queueBy: 20_030 }, 1, 10)).to.equal(false);
    expect(replicas.givesWay({ ...mine, again: true, queueBy: 90_000 }, 1, 10)).to.equal(false);
    expect(replicas.givesWay({ ...mine, model: 'other' }, 1, 10)).to.equal(false);
  });

  it('is left anew when the one that was next has gone', () => {
    const { a, replicas, say } = waitingElsewhere(
      { num: 5, again: true, queueBy: 60_000 },
      { num: 6, again: true, queueBy: 60_000 },
    );
    replicas.givesWay(mine, 1, 0);
    expect(replicas.givesWay(mine, 1, giveWayMs)).to.equal(false);
    a.voice.waitsNot(5);
    say(giveWayMs);
    expect(replicas.givesWay(mine, 1, giveWayMs)).to.equal(true);
    a.voice.waitsNot(6);
    expect(replicas.hear(a.origin, a.voice.frames(giveWayMs + 1)[0] as ReplicaFrame, giveWayMs + 1).room).to.equal(
      true,
    );
    expect(replicas.givesWay(mine, 1, giveWayMs + 1)).to.equal(false);
  });
});
