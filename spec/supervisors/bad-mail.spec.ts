/** What must not be in a mailbox or on a subject is refused, kept and counted, and nobody else notices. */
import { expect } from 'chai';
import {
  address,
  type DeadMail,
  decodeCbor,
  encodeCbor,
  type NatsBus,
  openMailbox,
  subjects,
} from '../../transport/index.js';
import { codeOf, Gate } from '../transport/kit.js';
import { startTrees, type Trees } from './tree-kit.js';

const s = subjects('spec');
const gatewayId = 'gateway-0-a';
const frontend = address('gateway', gatewayId, 'frontend');

async function ask(trees: Trees): Promise<string> {
  const answer = await fetch(`${trees.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'mock', prompt: 'once upon a time', max_tokens: 64, seed: 3, ignore_eos: true }),
  });
  const { choices } = (await answer.json()) as { choices: { text: string }[] };
  return choices[0]?.text ?? `status ${answer.status}`;
}

/** Bytes that no receiver may act on, by what is wrong with them. */
function badFor(to: string, type: string, body: unknown): Record<string, Uint8Array> {
  const good = { v: 1, type, id: 'x', from: frontend, to, seq: 1, req: 'r', attempt: 1, budgetMs: 5_000, ts: 0, body };
  return {
    NET_MALFORMED: Uint8Array.of(0xff, 0x00, 0x12, 0x80),
    empty: new Uint8Array(0),
    random: Uint8Array.from({ length: 4_096 }, (_, i) => (i * 7919) % 251),
    'as large as the broker takes': new Uint8Array(1024 * 1024 - 1024).fill(0x41),
    list: encodeCbor([1, 2, 3]),
    NET_VERSION: encodeCbor({ ...good, v: 2 }),
    NET_UNKNOWN_TYPE: encodeCbor({ ...good, type: 'Frobnicate' }),
    schema: encodeCbor({ ...good, body: { reply: 17 } }),
    'type of another carrier': encodeCbor({ ...good, type: 'Resynced', body: { known: false, items: [] } }),
    'a request without a number': encodeCbor({ ...good, attempt: -1 }),
    'a step frame cut short': Uint8Array.of(0x83, 0x01),
    'an order in the name of another gateway': encodeCbor({
      ...good,
      type: 'Ended',
      body: { reply: { gateway: 'gateway-1-b', num: 1 } },
    }),
    'news in the name of another worker': encodeCbor({
      ...good,
      from: address('decode', 'decode-0-a', 'worker'),
      type: 'Failed',
      body: { num: 1, leg: 'prefill', worker: 'prefill-0-a', code: 'GPU_DECODE_FAILED', message: '' },
    }),
  };
}

describe('bad mail', function () {
  this.timeout(60_000);
  let trees: Trees;
  let node: NatsBus;
  const dead: DeadMail[] = [];
  const gate = new Gate();

  before(async () => {
    trees = await startTrees({ prefill: 1, decode: 1, flags: { 'log.level': 'silent' } });
    node = await trees.broker.connect('node');
    await node.follow('DEAD', s.all('dead'), 'start', ({ data }) => {
      dead.push(decodeCbor(data) as DeadMail);
      gate.change();
    });
  });
  after(() => trees?.stop());

  const reply = { gateway: gatewayId, num: 1_000_000 };
  const here = {
    prefill: address('prefill', 'prefill-0-a', 'worker'),
    decode: address('decode', 'decode-0-a', 'worker'),
  };
  let sent = 0;

  for (const role of ['prefill', 'decode'] as const) {
    it(`in the mailbox of a ${role} worker is refused and kept, one letter each, while others are served`, async () => {
      const undisturbed = await ask(trees);
      const bad = badFor(here[role], 'Cancel', { reply, reason: '' });
      const before = dead.length;
      const answers = Array.from({ length: 8 }, () => ask(trees));
      for (const bytes of Object.values(bad)) await node.store(s.mail(here[role]), bytes, `bad-${++sent}`, 5_000);
      const wanted = before + Object.keys(bad).length;
      await gate.until(() => dead.length >= wanted, 15_000, `${wanted} dead letters`);
      expect(await Promise.all(answers)).to.deep.equal(Array(8).fill(undisturbed));
      const mine = dead.slice(before);
      expect(mine.map(({ subject }) => subject)).to.deep.equal(Array(mine.length).fill(s.mail(here[role])));
      for (const code of ['NET_MALFORMED', 'NET_VERSION', 'NET_UNKNOWN_TYPE'])
        expect(mine.map((letter) => letter.code)).to.include(code);
      expect(mine.every(({ detail }) => detail !== '')).to.equal(true);
      expect(await ask(trees)).to.equal(undisturbed);
      expect(trees.workers.get(`${role}-0-a`)?.facts().badMail).to.equal(mine.length);
    });
  }

  it('larger than the broker takes does not leave its sender', async () => {
    const large = new Uint8Array(1024 * 1024 + 1);
    expect(await codeOf(node.store(s.mail(here.decode), large, `bad-${++sent}`, 5_000))).to.equal('NET_TOO_LARGE');
  });

  const spoken: [string, string, Record<string, Uint8Array>][] = [
    ['frames to a gateway', s.out(gatewayId), badFor(frontend, 'Progress', {})],
    ['frames to a worker', s.ack('decode', 'decode-0-a'), badFor(here.decode, 'Ended', { reply })],
    ['load reports', s.load('decode', 'decode-0-a'), badFor(here.decode, 'Load', {})],
    ['obituaries', s.down('decode', 'decode-0-a'), badFor(here.decode, 'Down', {})],
  ];
  for (const [what, subject, bad] of spoken) {
    it(`among ${what} is kept by everybody who heard it and acted on by nobody`, async () => {
      const undisturbed = await ask(trees);
      const before = dead.length;
      for (const bytes of Object.values(bad)) node.send(subject, bytes);
      await gate.until(
        () => dead.slice(before).filter((letter) => letter.subject === subject).length >= Object.keys(bad).length,
        15_000,
        `dead letters of ${subject}`,
      );
      expect(await ask(trees)).to.equal(undisturbed);
    });
  }

  it('that speaks for another incarnation changes nothing', async () => {
    const undisturbed = await ask(trees);
    const before = dead.length;
    const head = { v: 1, id: 'x', from: here.prefill, seq: 1, req: '', attempt: 0, budgetMs: 0, ts: 0 };
    const obituary = { ...head, type: 'Down', to: here.decode, body: { incarnation: 'decode-0-a', reason: 'a lie' } };
    node.send(s.down('prefill', 'other'), encodeCbor(obituary));
    node.send(s.ack('decode', 'decode-0-a'), encodeCbor({ ...head, type: 'Ended', to: here.prefill, body: { reply } }));
    await gate.until(() => dead.length >= before + 2, 15_000, 'dead letters');
    expect(await ask(trees)).to.equal(undisturbed);
  });

  it('in a question is answered with a refusal', async () => {
    const bad = badFor(here.decode, 'Resync', {});
    for (const bytes of Object.values(bad)) {
      const answer = decodeCbor(await node.request(s.query(here.decode), bytes, 5_000));
      expect(answer).to.deep.include({ v: 1, type: 'Refusal' });
    }
  });

  it('of an incarnation that is gone can be read by nobody else', async () => {
    const got: string[] = [];
    const gone = address('decode', 'decode-9-z', 'worker');
    await node.store(s.mail(gone), badFor(gone, 'Cancel', {}).schema as Uint8Array, `bad-${++sent}`, 5_000);
    const decode = await trees.broker.connect('decode');
    await openMailbox(decode, address('decode', 'decode-0-b', 'worker'), (mail) => got.push(mail.type), {
      onDropped: (code) => got.push(code),
    });
    await ask(trees);
    expect(got).to.deep.equal([]);
  });
});
