/** Every code of the refusal table, said by a worker to a running fleet: what becomes of the request, and of the worker. */
import { expect } from 'chai';
import { clientError, meaningOf, type RefusalCode, refusals } from '../../actors/refusals.js';
import { address, type Body } from '../../transport/index.js';
import { createFleet, type Fleet, prepared } from './fleet.js';

const codes = Object.keys(refusals) as RefusalCode[];
const full: ReadonlySet<string> = new Set(['GPU_FULL', 'GPU_POOL_FULL', 'WRK_TOO_MANY']);
const refusing = 'decode-0-a';

/** From now on one decode worker answers every order with this code. Returns how often it was asked. */
function refuse(fleet: Fleet, code: string): () => number {
  let asked = 0;
  fleet.lose(({ type, to, body, head }) => {
    if (type !== 'Reserve' && type !== 'Generate') return true;
    if (!to.includes(refusing)) return true;
    asked++;
    const { num } = (body as Body<'Generate'>).reply;
    fleet.redeliver({
      from: to,
      to: address('gateway', 'gateway-0-a', 'frontend'),
      type: 'Refused',
      body: { num, leg: 'decode', worker: refusing, code, message: 'why' },
      head,
    });
    return false;
  });
  return () => asked;
}

describe('the refusal table, code by code', () => {
  for (const code of [...codes, 'NEVER_HEARD']) {
    const meaning = meaningOf(code);
    const fate = meaning.elsewhere ? 'is served elsewhere' : `fails with ${meaning.status}`;
    it(`${code}: the request ${fate}; kept out: ${meaning.inhibit}; dropped from view: ${meaning.drop}`, async () => {
      const fleet = createFleet({ prefill: 1, decode: 2 });
      const asked = refuse(fleet, code);
      const all = Array.from({ length: 6 }, () => fleet.submit(prepared()).seen);
      await fleet.run(40_000, () => all.every(({ ends }) => ends > 0));
      expect(asked(), 'it was asked').to.be.greaterThan(0);
      // At each load report and each slot that got free, not as fast as it answers.
      if (full.has(code)) expect(asked(), 'who is full is not asked without end').to.be.lessThan(40);

      const failed = all.filter(({ error }) => error !== undefined);
      expect(all.map(({ ends }) => ends)).to.deep.equal(all.map(() => 1));
      if (meaning.elsewhere) expect(failed).to.deep.equal([]);
      else expect(failed.map(({ error }) => error)).to.deep.equal(failed.map(() => clientError(code, 'why')));
      if (!meaning.elsewhere) expect(failed, 'no second worker was asked').to.have.length(asked());

      const { inhibited, inhibitions } = await fleet.routerFacts();
      const out = inhibited.map(({ incarnation, prefill, reason }) => [incarnation, prefill, reason]);
      if (meaning.inhibit === 'worker') expect(out).to.deep.equal([[refusing, undefined, code]]);
      if (meaning.inhibit === 'pair') expect(out).to.deep.equal([[refusing, 'prefill-0-a', code]]);
      if (meaning.inhibit === 'no') expect(inhibitions).to.equal(0);

      const before = asked();
      const next = Array.from({ length: 6 }, () => fleet.submit(prepared()).seen);
      await fleet.run(4_000, () => next.every(({ ends }) => ends > 0));
      if (meaning.drop || meaning.inhibit === 'worker') expect(asked(), 'nothing more went there').to.equal(before);
      else if (!full.has(code) && meaning.inhibit === 'no')
        expect(asked(), 'it is tried again').to.be.greaterThan(before);
    });
  }
});
