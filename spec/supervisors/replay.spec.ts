import { expect } from 'chai';
import { encodeTurn, type RawEntry } from '../../actors/index.js';
import { isSupervisorError, type RecordParts, replayParts } from '../../supervisors/index.js';
import { encodeCbor } from '../../transport/index.js';
import { taped } from '../actors/tape-kit.js';

type Source = Awaited<ReturnType<RecordParts['openFile']>>;
type Parts = Awaited<ReturnType<typeof replayParts>>;

const gateway = 'gateway-0-1';

/** Records as a stream has them. */
const sourceOf = (records: readonly Uint8Array[], incarnation = gateway): Source => ({
  namespace: 'sim',
  streams: [],
  full: true,
  read(_wanted, handler) {
    for (const [index, data] of records.entries()) {
      const subject = `dyn.sim.tape.gateway.${incarnation}.turns`;
      handler({ stream: 'TAPE', seq: index + 1, at: 0, subject, data });
    }
    return Promise.resolve();
  },
  close: () => Promise.resolve(),
});

describe('Replay of a tape', function () {
  this.timeout(60_000);
  let parts: Parts;
  let records: readonly Uint8Array[];
  before(async () => {
    parts = await replayParts();
    records = (await taped(7)).tapes.get(gateway) ?? [];
  });

  const refusal = async (of: readonly Uint8Array[], incarnation?: string): Promise<string> => {
    try {
      await parts.livesOf(sourceOf(of, incarnation));
    } catch (error) {
      if (isSupervisorError(error, 'SUP_REPLAY')) return error.message;
      throw error;
    }
    return 'taken';
  };
  const replayed = async (of: readonly Uint8Array[], name: string, options?: Parameters<Parts['replayLife']>[1]) => {
    const lives = await parts.livesOf(sourceOf(of));
    const [life] = parts.meant(lives, name, undefined);
    if (life === undefined) throw new Error(`no ${name}`);
    return parts.replayLife(life, { said: parts.saidIn(lives), ...options });
  };

  it('runs to the end of what is there, and counts what came out the same', async () => {
    for (const name of ['router', 'frontend', 'registry', 'journal']) {
      const { outcome, same } = await replayed(records, name);
      expect([outcome, same > 100]).to.deep.equal(['same', true], name);
    }
  });

  it('names a hole and does not cross it', async () => {
    const cut = records.filter((_, index) => index < 500 || index > 502);
    const { outcome, same, why } = await replayed(cut, 'frontend');
    expect(outcome).to.equal('hole');
    expect(why).to.equal(`records 501 to 503 of ${gateway} are not on the tape`);
    expect(same).to.be.above(100);
    expect(same).to.be.below((await replayed(records, 'frontend')).same);
  });

  it('does not begin where the start of an actor is not there any more', async () => {
    const { outcome, same, why } = await replayed(records.slice(100), 'router');
    expect([outcome, same]).to.deep.equal(['impossible', 0]);
    expect(why).to.equal(`records 1 to 100 of ${gateway} are not on the tape any more`);
  });

  it('shows both sides of the first difference, with the message and the state before it', async () => {
    const { outcome, difference } = await replayed(records, 'router', {
      alter: (behaviour) => ({
        ...behaviour,
        handle(state, message, ctx) {
          if (message.type !== 'Route') return behaviour.handle(state, message, ctx);
          const { request } = message as unknown as { readonly request: { readonly attempt: number } };
          const changed = { ...message, request: { ...request, attempt: request.attempt + 1 } };
          return behaviour.handle(state, changed, ctx);
        },
      }),
    });
    expect(outcome).to.equal('differs');
    expect(difference?.type).to.equal('Route');
    expect(difference?.what).to.match(/output \d, tell (Routed|Queued) to gateway\..*frontend, says something else/);
    // What was said then is on the frontend's tape.
    expect(difference?.recorded.join('\n')).to.match(/attempt: 1/);
    expect(difference?.replayed.join('\n')).to.match(/attempt: 2/);
    expect(difference?.state).to.match(/workers: Map/);
    expect(difference?.message).to.match(/type: 'Route'/);
  });

  it('ends where it is told to, and stops before messages of a type', async () => {
    const stops: number[] = [];
    const looked: number[] = [];
    const { outcome, same } = await replayed(records, 'router', {
      until: 60,
      from: 10,
      to: 12,
      look: ({ entry }) => void looked.push(entry.ordinal),
      breakOn: 'Load',
      atBreak: ({ entry }) => void stops.push(entry.ordinal),
    });
    expect([outcome, same]).to.deep.equal(['same', 61]);
    expect(looked).to.deep.equal([10, 11, 12]);
    expect(stops.length).to.be.above(3);
  });

  it('refuses tapes that no process wrote like this, and names the record', async () => {
    const swapped = [...records.slice(0, 4), records[5], records[4], ...records.slice(6)] as Uint8Array[];
    expect(await refusal(swapped)).to.match(
      /^record 6 \(TAPE 6\): record 5 of gateway-0-1 comes after its record 6: out of order$/,
    );
    expect(await refusal([...records.slice(0, 9), records[3] as Uint8Array])).to.match(/^record 10 .*out of order$/);
    expect(await refusal(records, 'gateway-1-1')).to.equal(
      'record 1 (TAPE 1): a turn of gateway-0-1 on the tape of gateway-1-1',
    );
    const short = (records[2] as Uint8Array).subarray(0, 40);
    expect(await refusal([...records.slice(0, 2), short])).to.match(/^record 3 \(TAPE 3\): not CBOR: /);
    expect(await refusal([encodeCbor({ v: 2, type: 'turn' })])).to.equal(
      'record 1 (TAPE 1): a turn of version 2, and this dynact reads version 1',
    );
    expect(await refusal([encodeCbor({ v: 1, type: 'letter' })])).to.equal('record 1 (TAPE 1): not a turn but letter');
    expect(await refusal([encodeCbor([1, 2])])).to.match(/^record 1 .*not a turn/);
    const broken = encodeCbor({
      v: 1,
      type: 'turn',
      process: gateway,
      n: 1,
      at: 0,
      names: [],
      requests: [],
      entries: [[7]],
    });
    expect(await refusal([broken])).to.equal('record 1 (TAPE 1): entry 1: not as entries are');
  });

  it('says that it does not know an actor, or what it was told, and does not fall over it', async () => {
    const entry = (origin: number, ordinal: number, type: string, input: unknown): RawEntry => ({
      ...{ actor: `gateway.${gateway}.router`, ordinal, origin, type, input: encodeCbor(input), request: '' },
      ...{ reads: '', answers: [], outputs: [] },
    });
    const life = (behaviour: string) => ({ behaviour, incarnation: 1, code: '0', config: { config: {} }, whole: true });
    const one = (...entries: RawEntry[]) => [encodeTurn(gateway, 1, 0, entries)];
    expect((await replayed(one(entry(-2, 0, 'planner', life('planner'))), 'router')).why).to.match(/does not know/);
    expect((await replayed(one(entry(-2, 0, 'router', { odd: 1 })), 'router')).why).to.match(/not as starts are/);
    expect((await replayed(one(entry(0, 0, 'Route', {})), 'router')).why).to.match(/not the start/);
    const start = (await parts.livesOf(sourceOf(records))).find(({ actor }) => actor.endsWith('router'))?.entries[0];
    const unpaid: RawEntry = { ...entry(99, 1, 'ReplicaTell', ['timer', null]) };
    const begun = { ...(start?.entry as unknown as RawEntry), request: '', outputs: [], answers: [], reads: '' };
    const { difference } = await replayed(one(begun, unpaid), 'router');
    expect(difference?.what).to.match(/waits for nothing with the number 99/);
  });
});
