/** The lives of actors as the records of a source have them, checked: what is missing, out of order or of somebody else is said, never passed over. */
import { decodeTurn, type Entry, type Turn } from '../../actors/index.js';
import { subjects } from '../../transport/index.js';
import { SupervisorError } from '../errors.js';
import type { Source, TapeRecord } from '../records/index.js';

/** An entry and where it stands: what `dynact tape` calls the record. */
export interface Placed {
  readonly entry: Entry;
  readonly n: number;
  readonly at: number;
  readonly source: string;
}

export interface LifeOnTape {
  readonly actor: string;
  readonly entries: readonly Placed[];
  /** Where it cannot be followed any further, in words; undefined: to its end, or to now. */
  readonly hole: string | undefined;
  /** Requests of the records it is in. */
  readonly requests: ReadonlySet<string>;
}

interface Growing {
  readonly actor: string;
  readonly entries: Placed[];
  readonly requests: Set<string>;
  hole: string | undefined;
}

interface Tape {
  /** Number of its last record. */
  last: number;
  /** From there on nothing can be trusted to follow. */
  hole: string | undefined;
  readonly lives: Map<string, Growing>;
}

/** Where a record stands in its stream, or in the file it came from. */
const placeOf = ({ stream, seq }: TapeRecord, index: number) => `record ${index + 1} (${stream} ${seq})`;

/** Every life of the source. Rejects with SUP_REPLAY, which names the record, if one cannot be what its process wrote; and as `read` does. */
export async function livesOf(source: Source): Promise<readonly LifeOnTape[]> {
  const tapes = new Map<string, Tape>();
  const all = subjects(source.namespace).all('tape').slice(0, -1);
  let index = 0;
  await source.read({ streams: ['TAPE'], since: 0, filters: [`${all}*.*.turns`] }, (record) => {
    take(tapes, record, placeOf(record, index++));
  });
  return [...tapes.values()].flatMap(({ lives }) => [...lives.values()]);
}

function take(tapes: Map<string, Tape>, record: TapeRecord, place: string): void {
  const wrong = (what: string) => new SupervisorError('SUP_REPLAY', [place, what]);
  const turn = decodeTurn(record.data);
  if (typeof turn === 'string') throw wrong(turn);
  const incarnation = record.subject.split('.').at(-2);
  if (turn.process !== incarnation) throw wrong(`a turn of ${turn.process.slice(0, 64)} on the tape of ${incarnation}`);
  let tape = tapes.get(turn.process);
  if (tape === undefined) {
    tape = { last: 0, hole: undefined, lives: new Map() };
    tapes.set(turn.process, tape);
  }
  if (turn.n <= tape.last)
    throw wrong(`record ${turn.n} of ${turn.process} comes after its record ${tape.last}: out of order`);
  if (turn.n > tape.last + 1) {
    const [from, to] = [tape.last + 1, turn.n - 1];
    const range =
      from === to ? `record ${from} of ${turn.process} is` : `records ${from} to ${to} of ${turn.process} are`;
    tape.hole ??= `${range} not on the tape${from === 1 ? ' any more' : ''}`;
    for (const life of tape.lives.values()) life.hole ??= tape.hole;
  }
  tape.last = turn.n;
  follow(tape, turn, place, wrong);
}

function follow(tape: Tape, turn: Turn, place: string, wrong: (what: string) => Error): void {
  for (const entry of turn.entries) {
    const { actor, ordinal } = entry;
    let life = tape.lives.get(actor);
    if (life === undefined) {
      life = { actor, entries: [], requests: new Set(), hole: undefined };
      tape.lives.set(actor, life);
      // Whoever starts after the hole has lost nothing by it.
      if (ordinal > 0) life.hole = tape.hole ?? `entries 0 to ${ordinal - 1} of ${actor} are not on the tape`;
    }
    if (life.hole !== undefined) continue;
    const want = life.entries.length;
    if (ordinal < want) throw wrong(`entry ${ordinal} of ${actor} comes after its entry ${want - 1}: out of order`);
    if (ordinal > want) {
      life.hole = `entries ${want} to ${ordinal - 1} of ${actor} are not on the tape`;
      continue;
    }
    life.entries.push({ entry, n: turn.n, at: turn.at, source: place });
    for (const request of turn.requests) life.requests.add(request);
  }
}
