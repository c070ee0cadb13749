/** The fault matrix: what is done to which part of a node while its requests are in which phase. */

export type Phase = 'queued' | 'prefilling' | 'transferring' | 'decoding';
export type ProcessFault = 'kill' | 'stop' | 'stop60' | 'term';
export type ActorFault = 'throw' | 'hang' | 'wedge';

/** The process that is hit, and the actor inside it if it is not all of it. */
export interface Target {
  readonly instance: string;
  readonly actor?: string;
}

export interface Cell {
  /** `<target>.<fault>.<phase>`, e.g. `decode.kill.decoding`. */
  readonly name: string;
  readonly target: Target;
  readonly fault: ProcessFault | ActorFault;
  readonly phase: Phase;
  /** The clients of the gateway that is hit lose their connection: nobody can answer them. */
  readonly gatewayDies: boolean;
  /** The node ends: its requests are finished first, and it serves again after the next start. */
  readonly nodeEnds: boolean;
  /** Longest pause of any stream that the target allows. */
  readonly pauseMs?: number;
}

const targets: Readonly<Record<string, Target>> = {
  decode: { instance: 'decode-0' },
  prefill: { instance: 'prefill-0' },
  nats: { instance: 'nats' },
  gateway: { instance: 'gateway-0' },
  node: { instance: 'node' },
  router: { instance: 'gateway-0', actor: 'router' },
  'decode-worker': { instance: 'decode-0', actor: 'worker' },
  'decode-gpu': { instance: 'decode-0', actor: 'gpu' },
  'prefill-worker': { instance: 'prefill-0', actor: 'worker' },
  'prefill-gpu': { instance: 'prefill-0', actor: 'gpu' },
};

const every: readonly Phase[] = ['queued', 'prefilling', 'transferring', 'decoding'];

/** A row: a target, a fault, the phases in which it makes a difference, and the longest pause it may cost. */
const rows: readonly [string, ProcessFault | ActorFault, readonly Phase[], number?][] = [
  ['decode', 'kill', every, 250],
  ['decode', 'stop', every, 3000],
  ['decode', 'stop60', ['decoding'], 3000],
  ['decode', 'term', ['prefilling', 'decoding'], 250],
  ['prefill', 'kill', every, 250],
  ['prefill', 'stop', ['prefilling', 'transferring', 'decoding'], 3000],
  ['prefill', 'term', ['prefilling', 'decoding'], 250],
  ['nats', 'kill', every, 3000],
  ['nats', 'stop', ['prefilling', 'decoding'], 8000],
  ['nats', 'stop60', ['decoding']],
  ['nats', 'term', ['decoding'], 3000],
  ['gateway', 'kill', ['prefilling', 'decoding']],
  ['gateway', 'stop', ['decoding']],
  ['gateway', 'term', ['queued', 'decoding']],
  ['node', 'kill', ['prefilling', 'decoding']],
  ['node', 'stop', ['decoding']],
  ['node', 'term', ['queued', 'decoding']],
  ['router', 'throw', ['queued', 'decoding']],
  ['router', 'hang', ['decoding']],
  ['decode-worker', 'throw', ['transferring', 'decoding'], 250],
  ['decode-worker', 'hang', ['decoding'], 3000],
  ['decode-gpu', 'throw', ['prefilling', 'decoding'], 250],
  ['decode-gpu', 'hang', ['decoding'], 3000],
  ['decode', 'wedge', ['queued', 'transferring', 'decoding'], 3000],
  ['prefill-worker', 'throw', ['prefilling'], 250],
  ['prefill-worker', 'hang', ['prefilling'], 3000],
  ['prefill-gpu', 'throw', ['prefilling'], 250],
  ['prefill-gpu', 'hang', ['prefilling'], 3000],
  ['prefill', 'wedge', ['prefilling'], 3000],
];

export const cells: readonly Cell[] = rows.flatMap(([name, fault, phases, pauseMs]) =>
  phases.map((phase): Cell => {
    const target = targets[name] as Target;
    const inGateway = target.instance === 'gateway-0';
    return {
      name: `${name}.${fault}.${phase}`,
      target,
      fault,
      phase,
      gatewayDies: inGateway && (fault === 'kill' || fault === 'throw' || fault === 'hang'),
      nodeEnds: name === 'node' && fault !== 'stop',
      // Elsewhere a pause is the wait for a free slot, or for the prompts that are computed first.
      ...(pauseMs === undefined || phase === 'queued' || phase === 'prefilling' ? {} : { pauseMs }),
    };
  }),
);

/** One of each kind: what a change is checked with. */
export const quickCells: readonly string[] = [
  'decode.kill.decoding',
  'decode.kill.transferring',
  'decode.stop.decoding',
  'decode.wedge.decoding',
  'prefill.kill.prefilling',
  'nats.kill.decoding',
  'router.throw.queued',
  'node.kill.decoding',
];

/**
 * Cells that the real engine runs as well: those in which it, or what it has computed, is at stake. It computes, so a pause is also the time
 * of computing again, and none is judged.
 */
export const realCells: readonly string[] = [
  'decode.kill.prefilling',
  'decode.kill.transferring',
  'decode.kill.decoding',
  'decode.stop.decoding',
  'decode.term.decoding',
  'decode.wedge.decoding',
  'decode-gpu.throw.decoding',
  'prefill.kill.prefilling',
  'prefill.kill.transferring',
  'prefill.kill.decoding',
  'prefill.stop.prefilling',
  'prefill.term.prefilling',
  'prefill.wedge.prefilling',
  'nats.kill.prefilling',
  'nats.kill.decoding',
  'nats.stop.decoding',
  'node.kill.decoding',
];

/** Throws a RangeError that names the nearest possibilities. `decode` or `decode.kill` stand for all cells that begin so. */
export function cellsNamed(names: readonly string[]): readonly Cell[] {
  return names.flatMap((name) => {
    const found = cells.filter((cell) => cell.name === name || cell.name.startsWith(`${name}.`));
    if (found.length === 0)
      throw new RangeError(`no cell ${name}; there are ${cells.map((cell) => cell.name).join(', ')}`);
    return found;
  });
}
