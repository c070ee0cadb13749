/** Children for the supervision specs: what they do is decided by the spec, and everything they do is in one trace. */
import type { ExitReason } from '../../actors/index.js';
import type { Child, Running } from '../../supervisors/otp/index.js';

export const error = (text: string): ExitReason => ({ kind: 'error', error: new Error(text) });

export interface Puppet extends Child {
  /** Ends the present life by itself. */
  end(reason: ExitReason): void;
  readonly lives: number;
  readonly live: boolean;
  /** Times that a life began beside another one. */
  readonly twins: number;
  /** How the next starts go: `ok` at once, `fail` at once, `hold` until `release`, `deaf` for ever, abort or not. */
  starts: 'ok' | 'fail' | 'hold' | 'deaf';
  /** This many of the next starts fail, whatever `starts` says. */
  failures: number;
  /** Lets a held start succeed; nothing if none is held. */
  release(): void;
  /** How it takes a stop: `obey`, `ignore` (kill works), `immortal` (nothing works). */
  stops: 'obey' | 'ignore' | 'immortal';
}

export function puppet(name: string, trace: string[] = []): Puppet {
  let lives = 0;
  let twins = 0;
  let present: { settle(reason: ExitReason): void } | undefined;
  let release: () => void = () => {};

  const live = (): Running => {
    lives++;
    const life = lives;
    let settle: (reason: ExitReason) => void = () => {};
    const exit = new Promise<ExitReason>((resolve) => {
      settle = resolve;
    });
    const end = (reason: ExitReason): void => {
      if (present !== self) return;
      present = undefined;
      settle(reason);
    };
    const self = { settle: end };
    if (present !== undefined) twins++;
    present = self;
    trace.push(`+${name}`);
    return {
      incarnation: `${name}-${life}`,
      exit,
      async stop() {
        trace.push(`-${name}`);
        if (made.stops === 'obey') end({ kind: 'shutdown' });
      },
      kill() {
        trace.push(`!${name}`);
        if (made.stops !== 'immortal') end({ kind: 'killed' });
      },
    };
  };

  const made: Puppet = {
    starts: 'ok',
    failures: 0,
    stops: 'obey',
    get lives() {
      return lives;
    },
    get twins() {
      return twins;
    },
    get live() {
      return present !== undefined;
    },
    async start(abort) {
      if (made.failures > 0) made.failures--;
      else if (made.starts === 'ok') return live();
      switch (made.starts) {
        case 'ok':
        case 'fail':
          trace.push(`?${name}`);
          throw new Error(`${name} cannot`);
        case 'deaf':
          return new Promise((resolve) => {
            release = () => resolve(live());
          });
        case 'hold':
          return new Promise((resolve, reject) => {
            release = () => resolve(live());
            abort.addEventListener('abort', () => {
              release = () => {};
              trace.push(`~${name}`);
              reject(new Error('aborted'));
            });
          });
      }
    },
    end(reason) {
      present?.settle(reason);
    },
    release() {
      const once = release;
      release = () => {};
      once();
    },
  };
  return made;
}

/** Lets all promises that can settle do so. */
export const quiet = async (): Promise<void> => {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
};
