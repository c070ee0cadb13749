import { expect } from 'chai';
import { nextPhase, type Phase, type PhaseEvent, transitions } from '../../actors/frontend/request.js';
import { clientError, meaningOf, refusals } from '../../actors/refusals.js';

const events: PhaseEvent[] = ['prepare', 'admit', 'dispatch', 'firstToken', 'decodeToken', 'lost', 'requeue', 'end'];
const phases = Object.keys(transitions) as Phase[];

describe('the request state machine', () => {
  it('has a defined outcome in every cell: the next phase, or an error that names both', () => {
    for (const phase of phases) {
      for (const event of events) {
        const next = transitions[phase][event];
        if (next === undefined)
          expect(() => nextPhase(phase, event)).to.throw(`illegal transition: ${event} while ${phase}`);
        else expect(nextPhase(phase, event)).to.equal(next);
      }
    }
  });

  it('can end from every phase but the end, and never leaves the end', () => {
    for (const phase of phases) {
      if (phase === 'ended')
        for (const event of events) expect(() => nextPhase(phase, event)).to.throw('illegal transition');
      else expect(nextPhase(phase, 'end')).to.equal('ended');
    }
  });

  it('can migrate from exactly the four middle phases', () => {
    expect(phases.filter((phase) => transitions[phase].lost !== undefined)).to.deep.equal([
      'queued',
      'prefilling',
      'transferring',
      'decoding',
    ]);
  });
});

describe('the refusal table', () => {
  it('never inhibits for full, draining, expired, wrong incarnation or a client error', () => {
    for (const code of [
      'GPU_FULL',
      'WRK_TOO_MANY',
      'WRK_DRAINING',
      'WRK_EXPIRED',
      'WRK_WRONG_INCARNATION',
      'GPU_BAD_REQUEST',
      'GPU_TOO_LONG',
    ]) {
      expect(meaningOf(code).inhibit, code).to.equal('no');
    }
  });

  it('sends a hint when waiting helps, and only then', () => {
    for (const code of Object.keys(refusals)) {
      const error = clientError(code, '');
      expect(error.retryAfterMs !== undefined, code).to.equal([429, 503, 529].includes(error.status));
    }
  });

  it('treats an unknown code as internal', () => {
    expect(clientError('NEVER_HEARD', 'secret path').status).to.equal(500);
    expect(clientError('NEVER_HEARD', 'secret path').message).not.to.include('secret');
  });
});
