/** Runs lives again and says where they first come out otherwise. */
import { inspect } from 'node:util';
import { type Output, type Rerun, rerun, shownOutput, toldAs } from '../../actors/index.js';
import type { LifeOnTape, Placed } from './lives.js';

export interface ReplayOptions {
  /** Ordinals between which `look` is called; outside it runs on in silence. */
  readonly from?: number;
  readonly to?: number;
  /** Ends after this ordinal. */
  readonly until?: number;
  /** Called after each entry between `from` and `to`; waits for what it returns. */
  readonly look?: (placed: Placed, run: Rerun) => Promise<void> | void;
  /** Called before an entry of this type. */
  readonly breakOn?: string;
  readonly atBreak?: (placed: Placed, run: Rerun) => Promise<void> | void;
  /** What an output said then, if that is on the tape, too: digests alone tell little to people. */
  readonly said?: (output: Output) => readonly unknown[] | undefined;
  /** For specs: other code. */
  readonly alter?: Parameters<typeof rerun>[1];
}

export interface Replayed {
  readonly actor: string;
  /** Entries that came out as they did then. */
  readonly same: number;
  readonly ms: number;
  readonly outcome: 'same' | 'differs' | 'hole' | 'impossible';
  /** Why it ended before the tape does. */
  readonly why?: string;
  readonly difference?: {
    readonly ordinal: number;
    readonly type: string;
    readonly source: string;
    readonly at: string;
    readonly what: string;
    readonly message: string;
    readonly recorded: readonly string[];
    readonly replayed: readonly string[];
    /** Before the message. */
    readonly state: string;
  };
}

const withSaid = (output: Output, said: readonly unknown[] | undefined) =>
  said === undefined ? shownOutput(output) : `${shownOutput(output)} ${said.map((each) => shown(each)).join(' ')}`;

const shown = (value: unknown, depth = 4) =>
  inspect(value, { depth, maxArrayLength: 24, maxStringLength: 400, breakLength: 120 });

export async function replayLife(life: LifeOnTape, options: ReplayOptions = {}): Promise<Replayed> {
  const { actor, entries, hole } = life;
  const begun = performance.now();
  const done = (outcome: Replayed['outcome'], same: number, more: Partial<Replayed> = {}): Replayed => ({
    actor,
    same,
    ms: performance.now() - begun,
    outcome,
    ...more,
  });
  const [first] = entries;
  if (first === undefined) return done('impossible', 0, { why: hole ?? 'nothing of it is on the tape' });
  const run = rerun(first.entry, options.alter);
  if (typeof run === 'string') return done('impossible', 0, { why: run });
  const { from = 0, to = Number.POSITIVE_INFINITY, until = Number.POSITIVE_INFINITY } = options;
  for (const placed of entries) {
    const { entry } = placed;
    const { ordinal } = entry;
    if (ordinal > until) return done('same', ordinal);
    if (options.breakOn === entry.type) await options.atBreak?.(placed, run);
    const difference = run.step(entry);
    if (difference !== undefined) {
      const { what, recorded, replayed } = difference;
      const facts = {
        ...{ ordinal, type: entry.type, source: placed.source, at: new Date(placed.at).toISOString(), what },
        message: shown(run.message(entry)),
        recorded: recorded.map((output) => withSaid(output, options.said?.(output))),
        replayed: replayed.map((output) => withSaid(output, output.said)),
        state: stateBefore(entries, ordinal, options),
      };
      return done('differs', ordinal, { difference: facts });
    }
    if (ordinal >= from && ordinal <= to) await options.look?.(placed, run);
  }
  return hole === undefined ? done('same', entries.length) : done('hole', entries.length, { why: hole });
}

/** States are not kept on the way: the way to there is gone once more. */
function stateBefore(entries: readonly Placed[], ordinal: number, { alter }: ReplayOptions): string {
  const run = rerun((entries[0] as Placed).entry, alter);
  if (typeof run === 'string') return run;
  for (const { entry } of entries) {
    if (entry.ordinal >= ordinal) break;
    run.step(entry);
  }
  return shown(run.state(), 3);
}

/** Lives that a name means: an actor by its address or the end of it (`router`, `gateway-0-x.router`), or all that a request passed. */
export function meant(lives: readonly LifeOnTape[], name: string, request: string | undefined): readonly LifeOnTape[] {
  const named = lives.filter(({ actor }) => actor === name || actor.endsWith(`.${name}`));
  if (named.length > 0 || request === undefined) return named;
  const concerned = new Set(lives.filter(({ requests }) => requests.has(request)).map(({ actor }) => processOf(actor)));
  return lives.filter(({ actor }) => concerned.has(processOf(actor)));
}

/** Finds what was told to an actor by what it was told: its own tape has the message. */
export function saidIn(lives: readonly LifeOnTape[]): NonNullable<ReplayOptions['said']> {
  return (output) => {
    if (output.kind !== 'tell') return undefined;
    for (const { entry } of lives.find(({ actor }) => actor === output.to)?.entries ?? []) {
      const message = toldAs(entry, output);
      if (message !== undefined) return [message];
    }
    return undefined;
  };
}

const processOf = (actor: string) => actor.split('.')[1];
