/** One cell of the matrix: 32 seeded streams, a fault in the wanted phase, and what became of every one of them. */
import {
  type FaultNode,
  type NodeSettings,
  openStreams,
  pauseAfter,
  poll,
  portsServedBy,
  reasons,
  type Stream,
  type Streams,
  settle,
  signal,
  startFaultNode,
} from '../../scenarios/index.js';
import type { Cell, Phase } from './cells.js';

export interface Setting {
  /** What runs: `mock` paces itself, so that a phase lasts long enough to be hit. */
  readonly engine: 'mock' | 'real';
  readonly streams: number;
  readonly tokens: number;
  /** File that the logs of the nodes are appended to. */
  readonly log?: string | undefined;
}

export interface CellResult {
  readonly cell: string;
  readonly streams: number;
  /** Streams of the gateway that was killed: nobody can answer them. */
  readonly excused: number;
  readonly complete: number;
  /** Complete, and the text that the same request has on an undisturbed node. */
  readonly identical: number;
  readonly failed: number;
  readonly hung: number;
  /** Longest time between two pieces of text of one stream that ends after the fault; excused streams do not count. */
  readonly pauseMs: number;
  /** From the first request to the last end. */
  readonly totalMs: number;
  /** What processes still hold when all is over, e.g. `decode-0 kvBlocks 3`; empty = nothing. */
  readonly leaked: readonly string[];
  /** Why streams failed, with counts. */
  readonly reasons: Readonly<Record<string, number>>;
  /** Streams without text, with one piece, and with more when the fault came. */
  readonly atFault: readonly [number, number, number];
  /** From the fault until every process is up again and holds nothing. */
  readonly recoveredMs: number;
}

/** What the requests of a phase answer when nothing happens. */
export interface Baseline {
  readonly texts: readonly string[];
  readonly totalMs: number;
  readonly pauseMs: number;
}

export type Baselines = ReadonlyMap<Phase, Baseline>;

/** Prompt tokens that make the phase: long prompts take several engine steps, short ones reach the hand-off together. */
const promptWords: Readonly<Record<Phase, number>> = { queued: 60, prefilling: 2000, transferring: 120, decoding: 60 };
/** With so few slots most requests wait in the router. */
const queuedSlots = '4';
/**
 * An engine step: 200 tokens take well over a second. While prompts are computed the timing formula applies, for a fixed step would
 * compute 8,192 tokens in no more time than one. The formula charges 17 ms for each request that an engine takes over, 16 of
 * them one after the other, and a pause would be that and little else.
 */
const stepMs = '8';
const stopMs = 5_000;
const longStopMs = 60_000;
/** Beyond the time that the fault itself lasts. */
const patienceMs = 40_000;
const idleMs = 30_000;

function nodeSettings(phase: Phase, { engine }: Setting): NodeSettings {
  const shape = ['--prefill', '2', '--decode', '2', '--gateway', '2', '--log-level', 'warn'];
  if (engine === 'real') return { flags: [...shape, '--context-tokens', '1024'], env: {} };
  const few = phase === 'queued';
  return {
    flags: [...shape, '--engine', 'mock', '--model', 'mock', ...(few ? ['--slots', queuedSlots] : [])],
    env: {
      ...(few ? { DYNACT_ENGINE_PREFILL_SLOTS: queuedSlots } : {}),
      ...(phase === 'prefilling' ? {} : { DYNACT_MOCK_STEP_MS: stepMs }),
    },
  };
}

/** The same for every run: half greedy, half sampled, each with its own seed. */
function bodies(phase: Phase, model: string, { engine, streams, tokens }: Setting, warm = 0): object[] {
  return Array.from({ length: streams }, (_, index) => {
    // Each is six tokens of the default model, whose context here has room for 1,024.
    const words = engine === 'real' ? (phase === 'prefilling' ? 140 : 40) : promptWords[phase];
    // One token each for the mock engine; no two prompts begin alike, so no prefix cache makes a prefill short.
    const story = Array.from(
      { length: words },
      (_, word) => ` tok${1000 + ((index * 7919 + word * 31 + warm) % 9000)}`,
    );
    return {
      model,
      prompt: story.join(''),
      max_tokens: tokens,
      ignore_eos: true,
      stream: true,
      seed: 1000 + index,
      temperature: index % 2 === 0 ? 0 : 0.8,
    };
  });
}

/** Whether the streams are in the phase. A client sees only text: what it has not got yet is queued, prefilling or transferring. */
function inPhase(phase: Phase, streams: readonly Stream[]): boolean {
  const begun = streams.filter(({ at }) => at.length > 0).length;
  switch (phase) {
    case 'queued':
      // As many as have slots are under way, the others wait.
      return streams.filter(({ at }) => at.length >= 10).length >= streams.length / 8;
    case 'prefilling':
      return begun > 0;
    case 'transferring':
      // Token 1 comes from the prefill worker, token 2 from the decode worker that has taken over.
      return begun >= streams.length / 4;
    case 'decoding':
      return streams.every(({ at }) => at.length >= 20);
  }
}

/** Runs every phase's requests on one undisturbed node. */
export async function undisturbed(phases: readonly Phase[], setting: Setting): Promise<Baselines> {
  if (phases.length === 0) return new Map();
  const node = await startFaultNode(nodeSettings('decoding', setting), setting.log);
  try {
    const { model } = await node.status();
    const baselines = new Map<Phase, Baseline>();
    for (const phase of new Set(phases)) {
      const all = await openStreams(node.port, '/v1/completions', bodies(phase, model, setting)).ended(300_000);
      const bad = all.find(({ end }) => end !== 'complete');
      if (bad) throw new Error(`undisturbed stream ${bad.index} ended ${bad.end} ${bad.detail}`);
      const texts = all.map(({ text }) => text);
      if (new Set(texts).size < texts.length) throw new Error('two undisturbed streams have the same text');
      baselines.set(phase, { texts, totalMs: totalOf(all), pauseMs: Math.round(pauseAfter(all, 0)) });
    }
    return baselines;
  } finally {
    await node.stop();
  }
}

const totalOf = (all: readonly Stream[]) =>
  Math.round(Math.max(...all.map(({ endedAt }) => endedAt)) - Math.min(...all.map(({ sentAt }) => sentAt)));

/** Runs a cell on a node of its own. */
export async function runCell(cell: Cell, setting: Setting, baselines: Baselines): Promise<CellResult> {
  const { phase } = cell;
  const node = await startFaultNode(nodeSettings(phase, setting), setting.log);
  try {
    const { model } = await node.status();
    const baseline = baselines.get(phase);
    if (baseline === undefined) throw new Error(`no undisturbed run of ${phase}`);
    // Code that has not run yet is not compiled yet.
    const warm = bodies(phase, model, { ...setting, tokens: 20 }, 1);
    await openStreams(node.port, '/v1/completions', warm).ended(60_000);
    const before = await settle(node);
    if (before.length > 0) throw new Error(`not idle before the fault: ${before.join(', ')}`);
    return await disturbed(cell, setting, node, model, baseline);
  } finally {
    await node.stop();
  }
}

async function disturbed(
  cell: Cell,
  setting: Setting,
  node: FaultNode,
  model: string,
  baseline: Baseline,
): Promise<CellResult> {
  const { target, fault } = cell;
  const pid = await node.pid(target.instance);
  const streams = openStreams(node.port, '/v1/completions', bodies(cell.phase, model, setting));
  if (!(await streams.reached((all) => inPhase(cell.phase, all)))) {
    throw new Error(`the streams ended before they were ${cell.phase}: ${JSON.stringify(reasons(streams.all))}`);
  }
  const count = (test: (pieces: number) => boolean) => streams.all.filter(({ at }) => test(at.length)).length;
  const atFault = [count((n) => n === 0), count((n) => n === 1), count((n) => n > 1)] as const;
  const lost = cell.gatewayDies ? clientsOf(pid, node.port, streams) : new Set<number>();
  const faultAt = performance.now();
  const over = commit(cell, node, pid);
  const all = await streams.ended(patienceMs + (fault === 'stop60' ? longStopMs : fault === 'stop' ? stopMs : 0));
  await over;
  const ours = all.filter(({ port }) => !lost.has(port));
  if (cell.nodeEnds) await poll(idleMs, () => (node.survivors().length === 0 ? true : undefined));
  const left = cell.nodeEnds ? node.survivors().map((survivor) => `process ${survivor}`) : await settle(node);
  const recoveredMs = performance.now() - faultAt;
  if (cell.nodeEnds) await node.restart();
  const complete = ours.filter(({ end }) => end === 'complete');
  return {
    cell: cell.name,
    streams: all.length,
    excused: all.length - ours.length,
    complete: complete.length,
    identical: complete.filter(({ index, text }) => text === baseline.texts[index]).length,
    failed: ours.filter(({ end }) => end === 'failed' || end === 'cut').length,
    hung: all.filter(({ end }) => end === 'hung').length,
    pauseMs: Math.round(pauseAfter(ours, faultAt)),
    totalMs: totalOf(all),
    leaked: [...left, ...(await servesAgain(node, model))],
    reasons: reasons(ours),
    atFault,
    recoveredMs: Math.round(recoveredMs),
  };
}

/** Ports of the clients of a gateway that is about to die. Frozen meanwhile, it accepts no connection that is not counted. */
function clientsOf(pid: number, port: number, streams: Streams): Set<number> {
  signal(pid, 'SIGSTOP');
  try {
    return portsServedBy(
      pid,
      port,
      streams.all.map((stream) => stream.port),
    );
  } finally {
    signal(pid, 'SIGCONT');
  }
}

/** Does it, and resolves when the fault is over: at once, or when what was frozen goes on or has been replaced. */
async function commit({ target, fault }: Cell, node: FaultNode, pid: number): Promise<void> {
  switch (fault) {
    case 'kill':
      signal(pid, 'SIGKILL');
      return;
    case 'term':
      signal(pid, 'SIGTERM');
      return;
    case 'stop':
    case 'stop60': {
      signal(pid, 'SIGSTOP');
      await poll(fault === 'stop' ? stopMs : longStopMs, () => (signal(pid, 0) ? undefined : true));
      signal(pid, 'SIGCONT');
      return;
    }
    case 'wedge':
      return node.inject(target.instance, { kind: 'wedge' });
    default:
      return node.inject(target.instance, { kind: fault, actor: target.actor as string });
  }
}

/** A fault is over when a new request is answered: a few of them, so that each gateway and worker gets its share. */
async function servesAgain(node: FaultNode, model: string): Promise<string[]> {
  const setting: Setting = { engine: 'mock', streams: 8, tokens: 8 };
  const all = await openStreams(node.port, '/v1/completions', bodies('decoding', model, setting)).ended(30_000);
  return Object.entries(reasons(all)).map(([reason, count]) => `afterwards ${count} × ${reason}`);
}
