/** A throw while something is done for one request is that request's end: the gateway and everybody else's requests go on. */
import { expect } from 'chai';
import type { ClientStream, DeadLetter, FrontendMessage } from '../../actors/index.js';
import { createFleet, type Fleet, prepared } from './fleet.js';

/** A client whose stream breaks where it is told to; notes how it ended. */
function brittle(breaks: keyof ClientStream | undefined, at = 1) {
  const ended: string[] = [];
  let calls = 0;
  const call = (name: keyof ClientStream, then: () => void) => {
    if (name === breaks && ++calls >= at) throw new Error(`${name} is broken`);
    then();
  };
  const stream: ClientStream = {
    begin: () => call('begin', () => {}),
    text: () => call('text', () => {}),
    finish: () => call('finish', () => {}),
    end: () => call('end', () => void ended.push('complete')),
    fail: ({ code }) => call('fail', () => void ended.push(code ?? '')),
  };
  return { stream, ended };
}

let tickets = 1_000;
const submit = (fleet: Fleet, stream: ClientStream, body: unknown = prepared()) =>
  fleet.kernel.tell(fleet.frontend, { type: 'Submit', api: 'chat', body, stream, ticket: ++tickets, label: '' });

async function othersAreServed(fleet: Fleet, seen: readonly { ends: number; error: unknown }[]): Promise<void> {
  await fleet.run(60_000, () => seen.every(({ ends }) => ends > 0));
  expect(seen.map(({ error }) => error)).to.deep.equal(seen.map(() => undefined));
  expect(fleet.kernel.counters.crashes).to.equal(0);
  await fleet.run(2_000);
  for (const [where, held] of Object.entries(await fleet.idle())) expect(held, `held by ${where}`).to.equal(0);
  expect((await fleet.facts()).leaked).to.equal(0);
}

describe('a request that the frontend cannot go on with', () => {
  for (const [breaks, at] of [
    ['begin', 1],
    ['text', 1],
    ['text', 20],
    ['finish', 1],
    ['end', 1],
  ] as const) {
    it(`ends with an internal error when its stream throws in ${breaks}, call ${at}, while others are answered`, async () => {
      const fleet = createFleet({ prefill: 1, decode: 2 });
      const others = Array.from({ length: 4 }, () => fleet.submit().seen);
      const { stream, ended } = brittle(breaks, at);
      submit(fleet, stream);
      await othersAreServed(fleet, others);
      expect(ended).to.deep.equal(['internal']);
      expect(fleet.summaries).to.have.length(5);
      expect(fleet.summaries.filter(({ code }) => code === 'INTERNAL')).to.have.length(1);
    });
  }

  it('is over even if its client cannot be told', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const other = fleet.submit().seen;
    const { stream } = brittle('fail');
    submit(fleet, { ...stream, text: brittle('text').stream.text });
    await othersAreServed(fleet, [other]);
  });

  it('is taken in again twice if that threw, and then refused', async () => {
    const fleet = createFleet({ prefill: 1, decode: 1 });
    const letters: DeadLetter[] = [];
    fleet.kernel.onDeadLetter((letter) => letters.push(letter));
    let tries = 0;
    const spiteful = {
      ...prepared(),
      get n(): number {
        tries++;
        throw new Error('no number');
      },
    };
    const { stream, ended } = brittle(undefined);
    submit(fleet, stream, spiteful);
    await othersAreServed(fleet, [fleet.submit().seen]);
    expect(tries).to.equal(3);
    expect(ended).to.deep.equal(['internal']);
    expect(letters.map(({ reason, error }) => [reason, error?.message])).to.deep.equal([['failed', 'no number']]);
  });

  it('is ended by what it was told, and the message is a dead letter', async () => {
    const fleet = createFleet({ prefill: 1, decode: 2, engine: { speedup: 1, stepMs: 20 } });
    const letters: DeadLetter[] = [];
    fleet.kernel.onDeadLetter((letter) => letters.push(letter));
    const other = fleet.submit().seen;
    const { stream, ended } = brittle(undefined);
    submit(fleet, stream);
    await fleet.run(300);
    const [attempt, worker] = [1, fleet.placement('decode') as string];
    const reply = { known: true, items: undefined } as never;
    fleet.kernel.tell(fleet.frontend, { type: 'Resynced', num: 2, attempt, worker, reply } as FrontendMessage);
    await fleet.run(10);
    expect(ended).to.deep.equal(['internal']);
    expect(letters.map(({ reason }) => reason)).to.deep.equal(['failed']);
    await othersAreServed(fleet, [other]);
  });

  it('does not take those with it that share its worker when that dies, or that wait when the broker comes back', async () => {
    const fleet = createFleet({ prefill: 0, decode: 2, engine: { speedup: 1, stepMs: 20 } });
    const others = Array.from({ length: 6 }, () => fleet.submit().seen);
    const { stream, ended } = brittle(undefined);
    const body = prepared({ maxTokens: 200 });
    submit(fleet, stream, body);
    await fleet.run(200);
    // Whatever needs its prompt from now on throws: the next attempt does.
    Object.defineProperty(body, 'prompt', {
      get() {
        throw new Error('the prompt is gone');
      },
    });
    fleet.killWorker('decode-0-a');
    fleet.killWorker('decode-1-a');
    fleet.addWorker('decode', 'decode-0-b');
    await othersAreServed(fleet, others);
    expect(ended).to.deep.equal(['internal']);
  });
});

describe('what is said of a request by a worker that has nothing to do with it', () => {
  it('changes nothing: neither its tokens nor its failure count', async () => {
    const body = prepared({ maxTokens: 40 });
    const alone = createFleet({ prefill: 0, decode: 1 });
    const reference = alone.submit(body).seen;
    await alone.run(60_000, () => reference.ends > 0);

    const fleet = createFleet({ prefill: 0, decode: 2, engine: { speedup: 1, stepMs: 20 } });
    const { seen } = fleet.submit(body);
    await fleet.run(200);
    const owner = fleet.placement('decode');
    const stranger = owner === 'decode-0-a' ? 'decode-1-a' : 'decode-0-a';
    const item = { num: 1, attempt: 1, choice: 0, position: 0, tokens: [1, 2, 3], finish: 1 };
    fleet.kernel.tell(fleet.frontend, { type: 'Frame', frame: { worker: stranger, seq: 1, items: [item] } });
    for (const type of ['Refused', 'Failed'] as const) {
      const said = { num: 1, leg: 'decode', worker: stranger, code: 'GPU_DECODE_FAILED', message: '' };
      fleet.kernel.tell(fleet.frontend, { type, req: 'r', attempt: 1, body: said } as unknown as FrontendMessage);
    }
    await othersAreServed(fleet, [seen]);
    expect(seen.texts).to.deep.equal(reference.texts);
    expect(fleet.summaries[0]?.attempts).to.equal(1);
    expect((await fleet.facts()).stale).to.equal(3);
  });
});

describe('an order for a worker that is not there', () => {
  for (const [what, decode] of [
    ['never was', 'decode-7-x'],
    ['is gone', 'decode-1-a'],
  ] as const) {
    it(`is not sent when it ${what}: the request goes elsewhere at once`, async () => {
      const fleet = createFleet({ prefill: 0, decode: 2, engine: { speedup: 1, stepMs: 20 } });
      fleet.killWorker('decode-1-a');
      // The one that is left is busy for a moment, so that the answer to the question can be given here.
      const body = prepared({ maxTokens: 5 });
      const { seen } = fleet.submit(body);
      fleet.kernel.tell(fleet.frontend, { type: 'Routed', num: 1, attempt: 1, prefill: undefined, decode });
      await fleet.run(500, () => seen.ends > 0);
      expect(seen.error).to.equal(undefined);
      expect(seen.ends, 'long before any deadline').to.equal(1);
      expect(fleet.world.posted.some((item) => item.kind === 'command' && item.to.includes(decode))).to.equal(false);
    });
  }
});
