import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import {
  drawSchedule,
  type FaultKind,
  type Mutation,
  readSchedule,
  type Schedule,
  type SimulationResult,
  shrink,
  simulate,
  tamper,
  tamperPost,
} from '../../scenarios/simulator/index.js';
import { type NodeParts, nodeParts, packageRoot, type ResolvedConfig, resolveConfig } from '../../supervisors/index.js';

/** What the simulator once found in this code, made short. */
const schedules = path.join(packageRoot(), 'spec/scenarios/schedules');
/** Seeds within which each planted bug must be found. */
const seedsForBugs = 40;

interface Planted {
  readonly bug: string;
  readonly mutation: Mutation;
  /** Faults under which it shows. */
  readonly kinds?: readonly FaultKind[];
}

type Attempted = { readonly num: number; readonly attempt: number };

const planted: readonly Planted[] = [
  {
    bug: 'the prefill leg of a request that is given up is told by nobody',
    mutation: tamperPost({
      command: (...sent) => (sent[2] === 'Cancel' && sent[1].startsWith('prefill.') ? undefined : sent),
      frame: (...sent) =>
        sent[1].startsWith('prefill.') && ['Ended', 'KvRelease'].includes(sent[2]) ? undefined : sent,
    }),
  },
  {
    bug: 'the decode leg of a request whose client has left is not told',
    mutation: tamperPost({
      command: (...sent) => (sent[2] === 'Cancel' && sent[1].startsWith('decode.') ? undefined : sent),
    }),
  },
  { bug: 'a worker that comes back has the name it had', mutation: { sameIncarnation: true } },
  {
    bug: 'the router does not hear that a cancelled request holds nothing more',
    mutation: tamper('router', 'Release', (release: { readonly end?: unknown }) =>
      release.end === undefined ? undefined : release,
    ),
  },
  {
    bug: 'the router books the end of another attempt',
    mutation: tamper('router', 'Release', (release: Attempted) => ({ ...release, attempt: release.attempt + 1 })),
  },
  {
    bug: 'what a lost frame held is not asked for again',
    mutation: tamper('frontend', 'Resynced'),
  },
  {
    bug: 'an attempt that is tried again draws another seed',
    mutation: tamperPost({
      command(from, to, type, body, head) {
        if (!('work' in body) || head.attempt === 1) return [from, to, type, body, head];
        const work = {
          ...body.work,
          sampling: { ...body.work.sampling, seed: body.work.sampling.seed + head.attempt },
        };
        return [from, to, type, { ...body, work }, head];
      },
    }),
  },
  {
    bug: 'workers keep what a dead gateway had asked for',
    mutation: tamper('worker', 'GatewayGone'),
    kinds: ['crash'],
  },
  {
    bug: 'workers are not told that a request has ended',
    mutation: tamperPost({ frame: (...sent) => (sent[2] === 'Ended' ? undefined : sent) }),
  },
  { bug: 'the router goes on with a worker that is gone', mutation: tamper('router', 'InstanceGone') },
  {
    bug: 'the router does not hear of blocks that left a cache',
    mutation: tamper('router', 'KvChange', (change: { readonly ops: readonly { readonly op: string }[] }) => ({
      ...change,
      ops: change.ops.filter(({ op }) => op === 'stored'),
    })),
  },
  {
    bug: 'a worker says yes before its engine has the request',
    mutation: tamper('gpu', 'Generate', (message: { readonly request: { readonly key: number } }) =>
      message.request.key % 5 === 0 ? undefined : message,
    ),
  },
  {
    bug: 'the end of an answer gets lost in its worker',
    mutation: tamper(
      'worker',
      'Step',
      (news: { readonly step: { readonly tokens: readonly { readonly finish: number; readonly key: number }[] } }) => ({
        ...news,
        step: {
          ...news.step,
          tokens: news.step.tokens.map((token) => (token.key % 4 === 0 ? { ...token, finish: 0 } : token)),
        },
      }),
    ),
  },
  {
    bug: 'the frontend takes its clients’ leave for nothing',
    mutation: tamper('frontend', 'ClientGone'),
  },
];

describe('The simulator', function () {
  this.timeout(240_000);
  let parts: NodeParts;
  let config: ResolvedConfig;
  const run = (schedule: Schedule, mutation: Mutation = {}): Promise<SimulationResult> =>
    simulate(schedule, { parts, config, mutation });

  before(async () => {
    parts = await nodeParts();
    ({ config } = await resolveConfig({ cwd: '/', env: {}, flags: {} }));
  });

  it('gives the same run for the same schedule, to the byte, and another for another seed', async () => {
    const digests: string[] = [];
    for (const seed of [11, 11, 12]) digests.push((await run(drawSchedule(seed))).digest);
    expect(digests[0]).to.equal(digests[1]);
    expect(digests[0]).not.to.equal(digests[2]);
  });

  it('finds nothing wrong with the code as it is', async () => {
    const seen: string[] = [];
    for (let seed = 1; seed <= 25; seed++) {
      for (const violation of (await run(drawSchedule(seed))).violations) seen.push(`seed ${seed}: ${violation}`);
    }
    expect(seen).to.deep.equal([]);
  });

  for (const name of readdirSync(schedules)) {
    it(`has seen ${path.basename(name, '.json').replaceAll('-', ' ')}, and it is no trouble any more`, async () => {
      const schedule = readSchedule(readFileSync(path.join(schedules, name), 'utf8'), name);
      if (typeof schedule === 'string') throw new Error(schedule);
      expect((await run(schedule)).violations).to.deep.equal([]);
    });
  }

  for (const { bug, mutation, kinds } of planted) {
    it(`finds the bug that ${bug}, within ${seedsForBugs} seeds`, async () => {
      for (let seed = 1; seed <= seedsForBugs; seed++) {
        const { violations } = await run(drawSchedule(seed, kinds && { kinds }), mutation);
        if (violations.length === 0) continue;
        return;
      }
      expect.fail(`none of ${seedsForBugs} seeds has found it`);
    });
  }

  it('makes a schedule that fails short, and the short one fails too', async () => {
    const { mutation } = planted.find(({ bug }) => bug.startsWith('the router books')) as Planted;
    const fails = async (schedule: Schedule) => (await run(schedule, mutation)).violations.length > 0;
    let failing: Schedule | undefined;
    for (let seed = 1; failing === undefined; seed++) {
      const schedule = drawSchedule(seed, { requests: 12, faults: 2 });
      if (await fails(schedule)) failing = schedule;
    }
    const short = await shrink(failing, fails, { runs: 150 });
    expect([short.requests.length, short.faults.length]).to.deep.equal([1, 0]);
    expect(await fails(short)).to.equal(true);
    expect(readSchedule(JSON.stringify(short), 'a file')).to.deep.equal(short);
  });

  it('says what is wrong with a file that is no schedule', () => {
    expect(readSchedule('{', 'x.json')).to.match(/^x\.json is not JSON/);
    expect(readSchedule('{"version":2}', 'x.json')).to.equal('x.json is no schedule of version 1, but 2');
    const schedule = drawSchedule(1);
    const odd = { ...schedule, faults: [{ at: 1, kind: 'earthquake', target: '', forMs: 1 }] };
    expect(readSchedule(JSON.stringify(odd), 'x.json')).to.match(/^x\.json: \/faults\/0\/kind /);
  });
});
