import { expect } from 'chai';
import { createLiveness, type Liveness } from '../../../actors/registry/liveness.js';

const worker = 'decode-0-a';

function watched(stuckMs = 1_500): Liveness {
  const liveness = createLiveness({ silentMs: 1_500 });
  liveness.add(worker, stuckMs);
  return liveness;
}

/** Looks while the broker answers, until somebody is suspect; how many it took. */
function looksUntilSilent(liveness: Liveness, most: number): number {
  for (let looks = 1; looks <= most; looks++) {
    liveness.echo();
    if (liveness.look().length > 0) return looks;
  }
  return Number.POSITIVE_INFINITY;
}

const beats = (liveness: Liveness, count: number, steps: number, queued: number, everyMs = 250) =>
  Array.from({ length: count }, () => liveness.beat({ incarnation: worker, steps, queued, everyMs }));

describe('who is silent', () => {
  it('is a worker of which nothing was heard for longer than the limit, told once', () => {
    const liveness = watched();
    expect(looksUntilSilent(liveness, 20), '250 ms each').to.equal(7);
    expect(looksUntilSilent(liveness, 20)).to.equal(Number.POSITIVE_INFINITY);
  });

  it('is nobody who beats or sends frames', () => {
    const liveness = watched();
    for (let i = 0; i < 30; i++) {
      if (i % 5 === 0) liveness.heard(worker);
      else if (i % 5 === 2) beats(liveness, 1, i, 0);
      expect(looksUntilSilent(liveness, 1)).to.equal(Number.POSITIVE_INFINITY);
    }
  });

  it('is cleared by the next beat, or the next frame', () => {
    const liveness = watched();
    looksUntilSilent(liveness, 7);
    expect(beats(liveness, 1, 1, 0)).to.deep.equal(['cleared']);
    looksUntilSilent(liveness, 7);
    expect(liveness.heard(worker)).to.equal(true);
    expect(liveness.heard(worker), 'once').to.equal(false);
  });

  it('is nobody while the own beat does not come back, nor until everybody had the whole limit to speak after that', () => {
    const liveness = watched();
    for (let looks = 0; looks < 400; looks++) expect(liveness.look()).to.deep.equal([]);
    expect(looksUntilSilent(liveness, 20)).to.equal(7);
  });

  it('is nobody because this process stood still: it looked once, however long that took', () => {
    const liveness = watched();
    looksUntilSilent(liveness, 4);
    // 60 s later the timer fires once, before what waits in the socket has been read.
    expect(liveness.look()).to.deep.equal([]);
    expect(beats(liveness, 240, 7, 0).filter(Boolean)).to.deep.equal([]);
  });

  it('is one that beats every second because it has nothing to do only when three beats are missing', () => {
    const liveness = watched();
    const slowly = (most: number) => {
      for (let looks = 1; looks <= most; looks++) {
        liveness.echo();
        if (liveness.look(1_000).length > 0) return looks;
      }
      return Number.POSITIVE_INFINITY;
    };
    for (let i = 0; i < 30; i++) {
      beats(liveness, 1, 5, 0, 1_000);
      expect(liveness.idle).to.equal(true);
      expect(slowly(1)).to.equal(Number.POSITIVE_INFINITY);
    }
    expect(slowly(10)).to.equal(3);
    expect(liveness.idle, 'somebody is suspect').to.equal(false);
    beats(liveness, 1, 5, 1);
    expect(liveness.idle, 'it is at work').to.equal(false);
    expect(looksUntilSilent(liveness, 20)).to.equal(7);
  });

  it('is nobody among those who have nothing to do while the own beat does not come back', () => {
    const liveness = watched();
    beats(liveness, 1, 5, 0, 1_000);
    for (let looks = 0; looks < 100; looks++) expect(liveness.look(1_000)).to.deep.equal([]);
  });

  it('is forgotten with the worker', () => {
    const liveness = watched();
    liveness.forget(worker);
    expect(looksUntilSilent(liveness, 20)).to.equal(Number.POSITIVE_INFINITY);
    expect(beats(liveness, 20, 1, 1).filter(Boolean)).to.deep.equal([]);
  });
});

describe('whose engine stands still', () => {
  it('is a worker that beats with work and the same step count for the limit, told once', () => {
    const liveness = watched();
    expect(beats(liveness, 7, 5, 1).filter(Boolean)).to.deep.equal(['ENGINE_WEDGED']);
    expect(beats(liveness, 20, 5, 1).filter(Boolean)).to.deep.equal([]);
    expect(beats(liveness, 1, 6, 1)).to.deep.equal(['cleared']);
  });

  it('is nobody who has no work', () => {
    expect(beats(watched(), 100, 5, 0).filter(Boolean)).to.deep.equal([]);
  });

  it('is nobody whose steps have been as long before: three times the longest so far is granted', () => {
    const liveness = watched(5_000);
    expect(beats(liveness, 19, 1, 1).filter(Boolean), 'a chunk of almost 5 s').to.deep.equal([]);
    const again = beats(liveness, 100, 2, 1);
    expect(again.indexOf('ENGINE_WEDGED'), '18 beats of longest step').to.equal(54);
  });

  it('does not hide the silence that follows: who is suspect stays so', () => {
    const liveness = watched();
    beats(liveness, 7, 5, 1);
    expect(looksUntilSilent(liveness, 20)).to.equal(Number.POSITIVE_INFINITY);
    expect(liveness.heard(worker), 'a frame proves no step').to.equal(false);
  });
});
