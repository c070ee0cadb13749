import { expect } from 'chai';
import { gatewayStatus, keptOut } from '../../supervisors/trees/gateway-status.js';

type View = Parameters<typeof gatewayStatus>[0];

const worker = { component: 'decode', instance: 'decode-0', incarnation: 'decode-0-a', model: 'mock', draining: false };
const load = { incarnation: 'decode-0-a', jobs: 3, busySlots: 2, leaked: 1 };
const frontend = { accepted: 9, ended: 6, inFlight: 2, leaked: 1 };
const router = {
  waiting: [],
  refused: {},
  sessions: { new: 0, kept: 0, moved: 0, size: 0 },
  busy: [],
  inhibited: [
    { incarnation: 'decode-0-a', reason: 'STREAM_BROKEN', remainingMs: 4_200, times: 2 },
    { incarnation: 'decode-1-a', prefill: 'prefill-0-a', reason: 'GPU_HANDOFF_GONE', remainingMs: 900, times: 1 },
  ],
  suspects: [
    { incarnation: 'decode-0-a', reason: 'WORKER_SILENT' },
    { incarnation: 'decode-1-a', reason: 'ENGINE_WEDGED' },
    { incarnation: 'decode-2-a', reason: 'WRONG_CARD' },
  ],
};
const view = {
  model: 'mock',
  brokerUp: true,
  instances: [worker],
  loads: new Map([['decode-0-a', load]]),
  frontend,
  router,
  kv: undefined,
} as unknown as View;

function values(of: View, name: string) {
  return gatewayStatus(of)
    .samples.filter((sample) => sample.name === `dynact_${name}`)
    .map((sample) => ({ value: sample.value, labels: 'labels' in sample ? sample.labels : {} }));
}

describe('What a gateway exports', () => {
  it('balances its requests, and shows as an alarm what is neither ended nor in flight, there and at each worker', () => {
    const of = (name: string) => values(view, name)[0]?.value;
    expect(of('frontend_requests_accepted_total')).to.equal(9);
    expect(of('frontend_requests_ended_total')).to.equal(6);
    expect(of('frontend_requests_in_flight')).to.equal(2);
    expect(of('frontend_leaked')).to.equal(1);
    const labels = { component: 'decode', instance: 'decode-0', worker: 'decode-0-a' };
    expect(values(view, 'worker_leaked')).to.deep.equal([{ value: 1, labels }]);
    expect(values(view, 'worker_requests_in_flight')).to.deep.equal([{ value: 3, labels }]);
  });

  it('names who gets no requests and why: workers, pairs, and suspects that nobody has failed on yet', () => {
    expect(values(view, 'router_inhibited')).to.deep.equal([
      { value: 1, labels: { worker: 'decode-0-a', prefill: '', reason: 'STREAM_BROKEN' } },
      { value: 1, labels: { worker: 'decode-1-a', prefill: 'prefill-0-a', reason: 'GPU_HANDOFF_GONE' } },
      { value: 1, labels: { worker: 'decode-1-a', prefill: '', reason: 'ENGINE_WEDGED' } },
      { value: 1, labels: { worker: 'decode-2-a', prefill: '', reason: 'WRONG_CARD' } },
    ]);
    expect(keptOut(view.router).inhibited).to.equal(
      'decode-0-a (STREAM_BROKEN, until it answers, 2x); prefill-0-a with decode-1-a (GPU_HANDOFF_GONE, for 1 s, 1x); ' +
        'decode-1-a (ENGINE_WEDGED, until it answers); decode-2-a (WRONG_CARD)',
    );
  });

  it('is not ready without the broker, or without a worker that stays', () => {
    const reason = (change: object) => gatewayStatus({ ...view, ...change } as View).reason;
    expect(reason({})).to.equal('');
    expect(reason({ brokerUp: false })).to.equal('the message broker is away');
    expect(reason({ instances: [{ ...worker, draining: true }] })).to.equal('no decode worker');
  });
});
