/**
 * A gateway's decisions on the tape, for people and for re-execution: gathered for a moment, so that a request costs no message of its own.
 * What cannot be written is counted in the next batch, so that a hole can be told from silence.
 */
import { encodeRoutes, type RouteRecord, type RouteTape, routeBatchBytes } from '../../actors/index.js';
import { type Bus, subjects } from '../../transport/index.js';

const holdMs = 250;
/** Workers compared or kept out in all decisions of a batch: about 20 bytes each, a millisecond to write. */
const batchRows = 2_048;

export interface TapedRoutes extends RouteTape {
  /** Writes what is left. */
  stop(): void;
}

export function openRouteTape(
  bus: Bus,
  gateway: string,
  warn: (facts: Readonly<Record<string, unknown>>, message: string) => void,
): TapedRoutes {
  const subject = subjects(bus.namespace).tape('gateway', gateway);
  let records: RouteRecord[] = [];
  let began: RouteRecord[] = [];
  let rows = 0;
  /** Decisions on no tape, which no batch has said yet. */
  let dropped = 0;
  let cancel: (() => void) | undefined;

  function send(): boolean {
    const bytes = encodeRoutes({ gateway, dropped, records, began });
    if (bytes.length > routeBatchBytes) return false;
    const before = bus.counters.dropped;
    bus.send(subject, bytes);
    return bus.counters.dropped === before;
  }

  function flush(): void {
    cancel?.();
    cancel = undefined;
    if (records.length + began.length === 0) return;
    let sent = false;
    try {
      sent = send();
    } catch (error) {
      // People miss a record; no request may.
      warn({ error: error instanceof Error ? error.message : String(error) }, 'decisions not written');
    }
    dropped = sent ? 0 : dropped + records.length;
    records = [];
    began = [];
    rows = 0;
  }

  function gathered(more: number): void {
    rows += more;
    if (rows >= batchRows) flush();
    else cancel ??= bus.clock.setTimer(holdMs, flush);
  }

  return {
    decided(record) {
      records.push(record);
      gathered(record.decisions.reduce((sum, made) => sum + made.candidates.length + made.excluded.length, 1));
    },
    began(record) {
      began.push(record);
      gathered(1);
    },
    stop: flush,
  };
}
