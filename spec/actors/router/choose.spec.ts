/** What a request may ask of its workers, through the choice of a pair: who is compared, who is not and why, and what is refused. */
import { expect } from 'chai';
import { costConfig } from '../../../actors/index.js';
import { choose, type RouteRequest, type RouteWishes, type Worker } from '../../../actors/router/choose.js';
import { Inhibitions } from '../../../actors/router/inhibition.js';
import { Ledger } from '../../../actors/router/ledger.js';
import { selectionModes } from '../../../actors/router/select.js';
import { impossible, named } from '../../../actors/router/wishes.js';

type Wished = Partial<Worker['info']>;

function worker(incarnation: string, over: Wished = {}): [string, Worker] {
  const component = incarnation.startsWith('p') ? 'prefill' : 'decode';
  const place = { node: 'n', host: 'h', pid: 1, draining: false, model: 'mock', fingerprint: 'f', slots: 2 };
  const info = { component, instance: incarnation.toUpperCase(), incarnation, ...place, ...over } as const;
  return [incarnation, { info, reported: 0, reportedBlocks: 0, full: false, suspect: undefined }];
}

function request(wishes?: RouteWishes, over: Partial<RouteRequest> = {}): RouteRequest {
  const prompt = { promptTokens: 64, hashes: new BigUint64Array(0), queueBy: 1e9 };
  const base = { num: 1, attempt: 1, id: 'r', model: 'mock', choices: 1, exclude: new Set<string>() };
  return { ...base, ...prompt, ...(wishes && { wishes }), ...over };
}

/** Two pairs, of which one has a taint. */
const workers = () =>
  new Map([worker('p0'), worker('p1', { taints: ['fast'] }), worker('d0'), worker('d1', { taints: ['fast', 'near'] })]);

function choice(wishes: RouteWishes, over: Partial<RouteRequest> = {}, there = workers(), draw = 0) {
  const fleet = {
    workers: there,
    ledger: new Ledger(64),
    inhibitions: new Inhibitions({ firstMs: 5_000, longestMs: 60_000 }),
    caches: undefined,
    tuning: { requestLimit: 0 },
  };
  const config = { mode: 'kv', blockTokens: 64, cost: costConfig() } as const;
  const outcome = choose(fleet, request(wishes, over), config, 0, 0, () => draw);
  const out = Object.fromEntries(
    outcome.decisions.flatMap(({ excluded }) => excluded.map(({ incarnation, reason }) => [incarnation, reason])),
  );
  const pair = outcome.choice && [outcome.choice.prefill, outcome.choice.decode];
  return { pair, out, shortOf: outcome.shortOf };
}

const draws = [0, 0.3, 0.6, 0.99];

describe('the choice of a pair', () => {
  for (const mode of selectionModes) {
    it(`keeps to both pins in mode ${mode}, whatever is drawn, and says of the others that they were not pinned`, () => {
      for (const draw of draws) {
        const { pair, out } = choice({ mode, pin: { prefill: 'p1', decode: 'd0' } }, {}, workers(), draw);
        expect(pair).to.deep.equal(['p1', 'd0']);
        expect(out).to.deep.equal({ p0: 'not-pinned', d1: 'not-pinned' });
      }
    });
  }

  for (const mode of selectionModes.filter((each) => each !== 'direct')) {
    it(`takes only what is allowed and has every required taint in mode ${mode}`, () => {
      for (const draw of draws) {
        const allowed = choice({ mode, allowed: new Set(['p0', 'd1']) }, {}, workers(), draw);
        expect(allowed.pair).to.deep.equal(['p0', 'd1']);
        expect(allowed.out).to.deep.equal({ p1: 'not-allowed', d0: 'not-allowed' });
        const tainted = choice({ mode, requiredTaints: ['fast'] }, {}, workers(), draw);
        expect(tainted.pair).to.deep.equal(['p1', 'd1']);
        expect(tainted.out).to.deep.equal({ p0: 'missing-taint', d0: 'missing-taint' });
      }
    });
  }

  it('leaves the half free that is not pinned, and computes the prompt on D where no P has what is required', () => {
    const halves = new Set(
      draws.map((draw) => choice({ mode: 'random', pin: { decode: 'd0' } }, {}, workers(), draw).pair?.[0]),
    );
    expect(halves).to.deep.equal(new Set(['p0', 'p1']));
    expect(choice({ requiredTaints: ['near'] }).pair).to.deep.equal([undefined, 'd1']);
  });

  it('prefers and avoids workers by taints that are not required, as long as nothing else speaks against it', () => {
    for (const draw of draws) {
      const there = () => new Map([worker('d0'), worker('d1', { taints: ['fast'] })]);
      expect(choice({ preferredTaints: { fast: 1 } }, {}, there(), draw).pair?.[1]).to.equal('d1');
      expect(choice({ preferredTaints: { fast: -1 } }, {}, there(), draw).pair?.[1]).to.equal('d0');
    }
  });

  it('waits for a pinned worker that is full, suspect or leaving, and takes no other', () => {
    const states: [string, (whole: Worker) => Worker][] = [
      ['full', (whole) => ({ ...whole, full: true })],
      ['suspect', (whole) => ({ ...whole, suspect: 'WORKER_SILENT' })],
      ['draining', (whole) => ({ ...whole, info: { ...whole.info, draining: true } })],
    ];
    for (const [reason, change] of states) {
      const there = workers();
      there.set('d0', change(there.get('d0') as Worker));
      const { pair, out, shortOf } = choice({ pin: { decode: 'd0' } }, {}, there);
      expect(pair, reason).to.equal(undefined);
      expect(out, reason).to.include({ d0: reason, d1: 'not-pinned' });
      expect(shortOf).to.equal('decode');
    }
  });

  it('makes no pair of different cards, pinned or not', () => {
    const there = () =>
      new Map([worker('p0', { fingerprint: 'other' }), worker('d0'), worker('d1', { fingerprint: 'other' })]);
    expect(choice({ pin: { decode: 'd0', prefill: 'p0' } }, {}, there()).pair).to.equal(undefined);
    expect(choice({ pin: { prefill: 'p0' } }, {}, there()).pair).to.deep.equal(['p0', 'd1']);
    expect(choice({ pin: { decode: 'd0' } }, {}, there()).pair).to.deep.equal([undefined, 'd0']);
  });
});

describe('a request that can never be served as it is', () => {
  const code = (wishes: RouteWishes, over: Partial<RouteRequest> = {}, direct = wishes.mode === 'direct') => {
    const found = named(workers(), request(wishes, over));
    return typeof found === 'string' ? found : impossible(workers(), found, direct);
  };
  const cases: [string, RouteWishes, Partial<RouteRequest>, string | undefined][] = [
    ['names nobody in mode direct', { mode: 'direct' }, {}, 'UNPINNED'],
    ['pins a P alone in mode direct', { mode: 'direct', pin: { prefill: 'p0' } }, {}, 'UNPINNED'],
    ['pins a D in mode direct', { mode: 'direct', pin: { decode: 'D0' } }, {}, undefined],
    ['pins who is not there', { pin: { worker: 'd7' } }, {}, 'NO_SUCH_WORKER'],
    ['pins a P for a D', { pin: { decode: 'p0' } }, {}, 'NO_SUCH_WORKER'],
    ['pins a D for a P', { pin: { prefill: 'D0' } }, {}, 'NO_SUCH_WORKER'],
    ['pins a rank that no worker has', { pin: { worker: 'd0', rank: 1 } }, {}, 'NO_SUCH_WORKER'],
    ['pins a worker of another model', { pin: { worker: 'd0' } }, { model: 'other' }, 'NO_SUCH_WORKER'],
    ['allows nobody who is there', { allowed: new Set(['d7']) }, {}, 'WISHES_UNMET'],
    ['allows one by its instance', { allowed: new Set(['D1']) }, {}, undefined],
    ['requires a taint that nobody has', { requiredTaints: ['far'] }, {}, 'WISHES_UNMET'],
    ['requires two that no one worker has', { requiredTaints: ['fast', 'far'] }, {}, 'WISHES_UNMET'],
    [
      'pins one worker and allows only another',
      { pin: { decode: 'd0' }, allowed: new Set(['d1']) },
      {},
      'WISHES_UNMET',
    ],
    ['pins one without what it requires', { pin: { decode: 'd0' }, requiredTaints: ['near'] }, {}, 'WISHES_UNMET'],
    ['pins one that has failed it', { pin: { decode: 'd0' } }, { exclude: new Set(['d0']) }, 'WISHES_UNMET'],
    ['asks for more choices than any D has slots', {}, { choices: 3 }, 'TOO_MANY_CHOICES'],
  ];
  for (const [title, wishes, over, expected] of cases) {
    it(`is told so, and no other is: it ${title}: ${expected ?? 'waits its turn'}`, () => {
      expect(code(wishes, over)).to.equal(expected);
    });
  }
});
