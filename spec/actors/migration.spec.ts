/** Whatever is lost, in whatever phase: what the client has in the end is what an undisturbed run gives it. */
import { expect } from 'chai';
import { address, type MessageType } from '../../transport/index.js';
import { createFleet, type Fleet, prepared, type Seen } from './fleet.js';

const words = (text = '') => text.trim().split(' ').filter(Boolean);
const base = prepared();

/** A client's view, without how often it was told. */
const shown = ({ texts, finishes, usage, logprobs, error }: Seen) => ({
  texts,
  finishes,
  // How much of a prompt was cached depends on who computed it.
  usage: usage && { ...usage, cachedTokens: 0 },
  logprobs,
  error,
});

async function finish(fleet: Fleet, seen: Seen, what: string): Promise<void> {
  await fleet.run(90_000, () => seen.ends > 0);
  expect(seen.ends, `${what}: ends`).to.equal(1);
  expect(seen.error, what).to.equal(undefined);
}

async function undisturbed(body: typeof base): Promise<Seen> {
  const fleet = createFleet({ prefill: 1, decode: 1 });
  const { seen } = fleet.submit(body);
  await finish(fleet, seen, 'undisturbed');
  return seen;
}

const greedy = { ...base.sampling, temperature: 0, seed: 0 };
const requests: Readonly<Record<string, () => Promise<typeof base>>> = {
  greedy: async () => prepared({ prompt: base.prompt, sampling: greedy }),
  seeded: async () => prepared({ prompt: base.prompt, sampling: { ...base.sampling, temperature: 0.8, seed: 7 } }),
  'three choices': async () => prepared({ prompt: base.prompt, n: 3 }),
  'a stop string': async () => {
    const all = words((await undisturbed(prepared({ prompt: base.prompt }))).texts[0]);
    return prepared({ prompt: base.prompt, stop: [`${all[24]} ${all[25]} ${all[26]}`] });
  },
  'log probabilities': async () => prepared({ prompt: base.prompt, logprobs: 3 }),
  'one token': async () => prepared({ prompt: base.prompt, maxTokens: 1 }),
};

type Leg = 'prefill' | 'decode';
const gateway = address('gateway', 'gateway-0-a', 'frontend');
const head = { req: '', attempt: 1, budgetMs: 1_000 };

/** A worker gives the request up and says so. */
const says = (type: MessageType, leg: Leg, code: string) => (fleet: Fleet) => {
  const worker = fleet.placement(leg);
  if (worker === undefined) return;
  const from = address(leg, worker, 'worker');
  const reply = { gateway: 'gateway-0-a', num: 1 };
  fleet.redeliver({ from: gateway, to: from, type: 'Cancel', body: { reply, reason: '' }, head });
  fleet.redeliver({ from, to: gateway, type, body: { num: 1, worker, leg, code, message: '' }, head });
};
const kill =
  (leg: Leg, known = true) =>
  (fleet: Fleet) => {
    const worker = fleet.placement(leg);
    if (worker !== undefined && fleet.workers.has(worker)) fleet.killWorker(worker, known);
  };

const faults: Readonly<Record<string, (fleet: Fleet) => void>> = {
  'the decode worker dies': kill('decode'),
  'the prefill worker dies': kill('prefill'),
  'both die': (fleet) => {
    kill('prefill')(fleet);
    kill('decode')(fleet);
  },
  'the decode worker falls silent': kill('decode', false),
  'the decode worker refuses': says('Refused', 'decode', 'GPU_STOPPED'),
  'the prefill worker refuses': says('Refused', 'prefill', 'WRK_DRAINING'),
  'the transfer fails': says('Failed', 'decode', 'GPU_HANDOFF_MISMATCH'),
  'the engine fails': says('Failed', 'decode', 'GPU_DECODE_FAILED'),
  'frames are lost': (fleet) => {
    let lost = 0;
    fleet.loseSteps(() => ++lost > 3);
  },
  'the broker goes and comes': (fleet) => {
    fleet.broker(false);
    fleet.broker(true);
  },
};

/** Instead of milliseconds. */
const firstToken = -1;

const flows = {
  'prefill-first': [0, 2, 6, 12, firstToken, 25, 50, 80, 120, 160],
  // What follows the hand-off is the same.
  'decode-first': [0, 2, 4, 6, 9, 12, firstToken],
} as const;
const flowNames = Object.keys(flows) as (keyof typeof flows)[];

describe('migration', () => {
  for (const [fault, strike, flow] of Object.entries(faults).flatMap(([name, run]) =>
    flowNames.map((each) => [name, run, each] as const),
  )) {
    it(`changes no token when ${fault}, in any phase, for any kind of request, ${flow}`, async () => {
      const phases = new Set<string>();
      for (const [kind, make] of Object.entries(requests)) {
        const body = await make();
        const expected = shown(await undisturbed(body));
        for (const moment of flows[flow]) {
          const fleet = createFleet({
            prefill: 2,
            decode: 2,
            seed: moment + 2,
            engine: { speedup: 2 },
            disagg: { flow },
          });
          const { seen } = fleet.submit(body);
          if (moment === firstToken) await fleet.run(5_000, () => seen.texts.some((text) => text !== ''));
          else await fleet.run(moment);
          for (const phase of Object.keys((await fleet.facts()).byPhase)) phases.add(phase);
          strike(fleet);
          const what = `${kind}, ${moment === firstToken ? 'first token' : `${moment} ms`}`;
          await finish(fleet, seen, what);
          expect(shown(seen), what).to.deep.equal(expected);
          await fleet.run(500);
          for (const [where, count] of Object.entries(await fleet.idle())) {
            expect(count, `${what}: held by ${where}`).to.equal(0);
          }
        }
      }
      const struck = flow === 'prefill-first' ? ['queued', 'transferring', 'decoding'] : ['prefilling', 'transferring'];
      expect([...phases], 'phases that were struck').to.include.members(struck);
    });
  }

  it('finds a stop string of which one half came from the worker that died', async () => {
    const plain = words((await undisturbed(base)).texts[0]);
    const stop = [plain.slice(20, 26).join(' ')];
    for (const before of [20, 22, 24, 25]) {
      const fleet = createFleet({ prefill: 1, decode: 2 });
      let delivered = 0;
      const { seen } = fleet.submit({ ...base, stop });
      // Text of a possible stop string is held back, so progress is read from the worker.
      const worker = () => fleet.placement('decode');
      await fleet.run(5_000, () => {
        const engine = fleet.workers.get(worker() ?? '')?.engine;
        delivered = Number(engine?.load().steps ?? 0);
        return delivered > before;
      });
      kill('decode')(fleet);
      await finish(fleet, seen, `stop after ${before}`);
      expect(words(seen.texts[0])).to.deep.equal(plain.slice(0, 20));
      expect(seen.finishes).to.deep.equal(['stop']);
    }
  });
});

describe('the retry budget', () => {
  it('lets a dying fleet be asked again at its rate, and loses no request by it', async () => {
    const fleet = createFleet({ prefill: 0, decode: 3, frontend: { retries: { burst: 2, perSecond: 10 } } });
    const all = Array.from({ length: 8 }, () => fleet.submit(prepared({ maxTokens: 200 })).seen);
    await fleet.run(20);
    const before = fleet.commands.filter((type) => type === 'Generate').length;
    for (const worker of ['decode-0-a', 'decode-1-a']) fleet.killWorker(worker);
    await fleet.run(1);
    const lost = (await fleet.facts()).migrations;
    expect(lost).to.be.greaterThan(3);
    await fleet.run(50);
    expect(fleet.commands.filter((type) => type === 'Generate').length - before).to.equal(2);
    await fleet.run(60_000, () => all.every(({ ends }) => ends > 0));
    expect(all.map(({ error, ends }) => ({ error, ends }))).to.deep.equal(
      all.map(() => ({ error: undefined, ends: 1 })),
    );
    expect(fleet.commands.filter((type) => type === 'Generate').length - before).to.equal(lost);
  });
});

describe('a poison prompt', () => {
  /** Kills whoever computes it, before it gives a token. */
  async function poison(fleet: Fleet, seen: Seen): Promise<string[]> {
    const dead: string[] = [];
    for (let round = 0; round < 4 && seen.ends === 0; round++) {
      await fleet.run(2, () => seen.ends > 0);
      const worker = [...fleet.workers.keys()].find((each) => fleet.placement('decode') === each);
      if (worker === undefined) continue;
      fleet.killWorker(worker);
      dead.push(worker);
      await fleet.run(1);
    }
    return dead;
  }

  it('fails after two workers died of it, is dead-lettered, and kept out for ten minutes; others are served', async () => {
    const fleet = createFleet({ prefill: 0, decode: 4, engine: { speedup: 0.1 } });
    const body = prepared();
    const { seen } = fleet.submit(body);
    expect(await poison(fleet, seen)).to.have.length(2);
    expect(seen.error).to.deep.include({ status: 500, code: 'poison_prompt', final: true });
    expect(fleet.poisoned).to.have.length(1);
    expect((await fleet.facts()).poisoned).to.equal(1);

    const again = fleet.submit({ ...body, sampling: greedy }).seen;
    await fleet.run(10);
    expect(again.error?.code).to.equal('poison_prompt');
    const other = fleet.submit(prepared()).seen;
    await finish(fleet, other, 'another prompt');

    fleet.world.advance(600_000, () => {});
    const later = fleet.submit(body).seen;
    await finish(fleet, later, 'after ten minutes');
  });

  it('is not one of many prompts that waited on two workers which were killed', async () => {
    const fleet = createFleet({ prefill: 0, decode: 4, engine: { speedup: 0.1 } });
    const all = Array.from({ length: 8 }, () => fleet.submit().seen);
    for (const worker of ['decode-0-a', 'decode-1-a']) {
      await fleet.run(60);
      fleet.killWorker(worker);
    }
    for (const [index, seen] of all.entries()) await finish(fleet, seen, `prompt ${index}`);
    expect(fleet.poisoned).to.deep.equal([]);
  });

  it('is not what was being answered when two workers were killed', async () => {
    const fleet = createFleet({ prefill: 0, decode: 4 });
    const { seen } = fleet.submit(prepared({ maxTokens: 400 }));
    for (let round = 0; round < 3; round++) {
      const before = words(seen.texts[0]).length;
      await fleet.run(5_000, () => words(seen.texts[0]).length > before + 5);
      kill('decode')(fleet);
    }
    await finish(fleet, seen, 'three deaths');
    expect(fleet.poisoned).to.deep.equal([]);
  });
});

describe('clients that go away', () => {
  it('leave nothing behind, 10,000 of them at random moments', async function () {
    this.timeout(120_000);
    const fleet = createFleet({ prefill: 2, decode: 2, seed: 99, engine: { speedup: 100 } });
    let random = 12_345;
    const below = (limit: number) => {
      random = (random * 1_103_515_245 + 12_345) % 2_147_483_648;
      return random % limit;
    };
    const open: { readonly ticket: number; readonly seen: Seen }[] = [];
    for (let aborts = 0; aborts < 10_000; ) {
      while (open.length < 24) open.push(fleet.submit({ maxTokens: 20 + below(60), n: 1 + below(2) }));
      await fleet.run(1);
      for (let i = below(12); i > 0; i--) {
        const [gone] = open.splice(below(open.length), 1);
        if (gone === undefined) continue;
        fleet.gone(gone.ticket);
        aborts++;
      }
    }
    for (const { ticket } of open) fleet.gone(ticket);
    await fleet.run(15_000);
    const { accepted, ended, inFlight } = await fleet.facts();
    expect({ inFlight, ended }).to.deep.equal({ inFlight: 0, ended: accepted });
    for (const [where, count] of Object.entries(await fleet.idle())) expect(count, `held by ${where}`).to.equal(0);
    const all = Array.from({ length: 16 }, () => fleet.submit().seen);
    await fleet.run(60_000, () => all.every(({ ends }) => ends > 0));
    expect(all.every(({ error, usage }) => error === undefined && usage !== undefined)).to.equal(true);
  });
});
