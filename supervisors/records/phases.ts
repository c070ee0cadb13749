/**
 * Where the time of a request went, from its evidence: for each attempt the wait for a worker, the prefill, the transfer of the KV and the
 * decoding. A phase begins and ends with messages; one whose end nobody told ends with its attempt, and one of a living request is open.
 */
import type { Evidence, Message } from './evidence.js';

export interface Phase {
  readonly name: 'queue' | 'prefill' | 'transfer' | 'decode';
  readonly attempt: number;
  /** Incarnation that was at it. */
  readonly where: string;
  /** Milliseconds since 1970. */
  readonly from: number;
  /** 0: it goes on. */
  readonly to: number;
  /** What ended it, if not the next phase: `Failed`, `Down` … */
  readonly cut: string;
}

interface Bounds {
  readonly acceptedAt: number;
  /** 0: it has not ended. */
  readonly endedAt: number;
  readonly attempts: number;
}

/** What says that an attempt is over. */
const losses = ['Refused', 'Failed', 'Down', 'Cancel'] as const;

export function phasesOf(evidence: Evidence, { acceptedAt, endedAt, attempts }: Bounds): Phase[] {
  const phases: Phase[] = [];
  let waitsSince = acceptedAt;
  for (let attempt = 1; attempt <= attempts; attempt++) {
    const isLast = attempt === attempts;
    const told = evidence.messages.filter((message) => message.attempt === attempt);
    const runs = evidence.tokens.filter((run) => run.attempt === attempt);
    const first = (...types: readonly string[]) => told.find(({ type }) => types.includes(type));
    const route = evidence.routes.find((each) => each.attempt === attempt && each.decode !== undefined);
    const order = first('Reserve', 'Generate');
    const decode = route?.decode ?? order?.to.split('.')[1] ?? '';
    const loss = isLast ? undefined : lossOf(evidence, told, decode, route?.prefill);
    const next = evidence.routes.find((each) => each.attempt === attempt + 1)?.at;
    const over = isLast ? endedAt : (loss?.at ?? next ?? endedAt);
    const cut = loss?.type ?? '';
    const phase = (name: Phase['name'], where: string, from: number, to: number | undefined): void => {
      const end = to ?? over;
      phases.push({
        name,
        attempt,
        where,
        from,
        to: end === 0 ? 0 : Math.max(from, end),
        cut: to === undefined ? cut : '',
      });
    };

    const placedAt = order?.at ?? route?.at ?? told[0]?.at ?? runs[0]?.firstAt;
    phase('queue', evidence.gateway, waitsSince, placedAt);
    if (over > 0) waitsSince = over;
    if (placedAt === undefined) continue;

    const asked = first('Prefill');
    const done = first('PrefillDone');
    const p = asked?.to.split('.')[1] ?? done?.from.split('.')[1] ?? route?.prefill;
    const ofP = p === undefined ? [] : runs.filter(({ worker }) => worker === p);
    const ofD = runs.filter(({ worker }) => worker !== p);
    const firstOfD = least(ofD.map(({ firstAt }) => firstAt));
    if (p === undefined) {
      // One worker does both: its first token parts the two.
      phase('prefill', decode, placedAt, firstOfD);
      if (firstOfD !== undefined) phase('decode', decode, firstOfD, endOf(ofD));
      continue;
    }
    const begun = asked?.at ?? told.find(({ from }) => from.includes(p))?.at ?? placedAt;
    const firstOfP = least(ofP.map(({ firstAt }) => firstAt));
    const computed = done?.sentAt ?? firstOfP;
    phase('prefill', p, begun, computed);
    const offered = told.find(({ type }) => type === 'KvOffer');
    const released = told.find(({ type, from }) => type === 'KvRelease' && from.startsWith('decode.'));
    const moves = done !== undefined || offered !== undefined;
    if (moves)
      phase(
        'transfer',
        decode,
        Math.min(offered?.at ?? Infinity, done?.sentAt ?? Infinity),
        released?.sentAt ?? firstOfD,
      );
    const decodes = released?.sentAt ?? firstOfD;
    if (decodes !== undefined && (firstOfD !== undefined || isLast)) phase('decode', decode, decodes, endOf(ofD));
  }
  return phases;
}

const least = (values: readonly number[]): number | undefined =>
  values.length === 0 ? undefined : Math.min(...values);

/** When the last choice was finished; undefined while one is not. */
function endOf(runs: readonly Evidence['tokens'][number][]): number | undefined {
  if (runs.length === 0 || runs.some(({ finish }) => finish === 0)) return undefined;
  return Math.max(...runs.map(({ lastAt }) => lastAt));
}

function lossOf(evidence: Evidence, told: readonly Message[], decode: string, prefill: string | undefined) {
  const down = evidence.down.find(({ incarnation }) => incarnation === decode || incarnation === prefill);
  // Whichever was first: a worker that hangs is given up long before it is dead.
  const ends = losses.flatMap((type) => {
    const found = type === 'Down' ? down : told.find((message) => message.type === type);
    return found === undefined ? [] : [{ type, at: found.at }];
  });
  return ends.sort((one, other) => one.at - other.at)[0];
}
