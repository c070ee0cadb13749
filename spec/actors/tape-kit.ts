/** Whole deployments in virtual time, whose gateways are on tape: as bytes, the way a broker would keep them. */
import { decodeTurn, type Entry, encodeTurn, type RawEntry, rerun, type Turn } from '../../actors/index.js';
import { drawSchedule, type Schedule, type SimulationResult, simulate } from '../../scenarios/simulator/index.js';
import { nodeParts, resolveConfig } from '../../supervisors/index.js';
import type { Bus } from '../../transport/index.js';

export interface Taped {
  readonly result: SimulationResult;
  /** By incarnation of the gateway. */
  readonly tapes: ReadonlyMap<string, readonly Uint8Array[]>;
}

export async function taped(schedule: Schedule | number, content = true): Promise<Taped> {
  const parts = await nodeParts();
  const { config } = await resolveConfig({ cwd: '/', env: {}, flags: {} });
  const tapes = new Map<string, Uint8Array[]>();
  const result = await simulate(typeof schedule === 'number' ? drawSchedule(schedule) : schedule, {
    config,
    parts: {
      ...parts,
      startGatewayActors(gateway) {
        const { incarnation } = gateway.info;
        const records: Uint8Array[] = [];
        tapes.set(incarnation, records);
        const bus = {
          namespace: 'sim',
          clock: gateway.bus.clock,
          counters: { dropped: 0 },
          send: (_subject: string, bytes: Uint8Array) => void records.push(Uint8Array.from(bytes)),
        };
        const tape = parts.openTurns(bus as unknown as Bus, {
          component: 'gateway',
          incarnation,
          content,
          warn(facts, message) {
            throw new Error(`${message} ${JSON.stringify(facts)}`);
          },
        });
        return parts.startGatewayActors({ ...gateway, tape });
      },
    },
  });
  return { result, tapes };
}

export function turnsOf(records: readonly Uint8Array[]): Turn[] {
  return records.map((bytes) => {
    const turn = decodeTurn(bytes);
    if (typeof turn === 'string') throw new Error(turn);
    return turn;
  });
}

/** Entries by actor. */
export function livesOf(turns: readonly Turn[]): Map<string, Entry[]> {
  const lives = new Map<string, Entry[]>();
  for (const { entries } of turns) {
    for (const entry of entries) {
      const life = lives.get(entry.actor) ?? [];
      life.push(entry);
      lives.set(entry.actor, life);
    }
  }
  return lives;
}

/** Runs a life again; the first thing that comes out otherwise, in words. */
export function runAgain(entries: readonly Entry[], alter?: Parameters<typeof rerun>[1]): string | undefined {
  const run = rerun(entries[0] as Entry, alter);
  if (typeof run === 'string') return run;
  for (const entry of entries) {
    const difference = run.step(entry);
    if (difference !== undefined) return `${entry.actor} ${entry.ordinal} ${entry.type}: ${difference.what}`;
  }
  return undefined;
}

/** What was gathered in memory, as a process would have written it. */
export function bytesOf(raw: readonly RawEntry[], perTurn = 64): Uint8Array[] {
  const records: Uint8Array[] = [];
  for (let at = 0; at < raw.length; at += perTurn)
    records.push(Uint8Array.from(encodeTurn('gateway-0-a', records.length + 1, 0, raw.slice(at, at + perTurn))));
  return records;
}
